"""The fused layer beside other libraries' mixture-of-experts layers, on the same data, in one process."""
