# Install rules, CMake package and pkg-config file.
