/* amx_sigill.c: run AMX code on an x86-64 Linux machine without AMX, by trapping.
 *
 * Each tile instruction raises SIGILL on such a machine; the handler decodes it, does what the
 * SDM says on a per-thread software tile state and steps over it. Everything else runs natively.
 *
 *   gcc -O3 -march=native -ffp-contract=off -fPIC -shared -o libamx_sigill.so amx_sigill.c -ldl
 *   LD_PRELOAD=./libamx_sigill.so ./program          # dynamic program
 *   gcc ... amx_sigill.c ... && ./program            # or linked into a (static) test program
 *
 * AMX_SIGILL_CPUID=1 also fakes CPUID (amx-tile, amx-int8, amx-bf16, leaves 0x1d, 0x1e) where the
 * kernel offers CPUID faulting. XGETBV cannot be faked: a dispatcher that checks XCR0 bits 17 and
 * 18 needs an override. arch_prctl(ARCH_REQ_XCOMP_PERM) through libc's syscall() succeeds.
 * AMX_SIGILL_STATS=1 prints counts at exit.
 *
 * Does: LDTILECFG STTILECFG TILELOADD TILELOADDT1 TILESTORED TILEZERO TILERELEASE TDPB{SS,SU,US,UU}D
 * TDPBF16PS TDPFP16PS. Faults as the hardware does where it can: a bad configuration gives SIGSEGV,
 * a tile out of shape stays SIGILL, a row outside mapped memory faults in the handler.
 * Not done: start_row restart, segment and 0x67 prefixes, tiles in fork()ed children of threads.
 */
#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <errno.h>
#include <immintrin.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

static __thread struct {
  uint8_t cfg[64];
  uint8_t t[8][16][64] __attribute__((aligned(64)));
} S __attribute__((tls_model("initial-exec"), aligned(64)));
static unsigned long n_mul, n_mem, n_cfg;
static struct sigaction old_ill, old_segv;

static int rows(int t) {
  return S.cfg[48 + t];
}
static int colsb(int t) {
  return S.cfg[16 + 2 * t] | S.cfg[17 + 2 * t] << 8;
}

static const int reg_of[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                               REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

static int ok_tile(int t) {
  return t < 8 && S.cfg[0] && rows(t) && !(colsb(t) & 3);
}
static int ok_tmul(int d, int a, int b) {
  return d != a && d != b && a != b && ok_tile(d) && ok_tile(a) && ok_tile(b) && rows(d) == rows(a) &&
         colsb(d) == colsb(b) && colsb(a) / 4 == rows(b);
}

#define INT8(NAME, TA, TB)                                                                                  \
  static void NAME(int d, int a, int b) {                                                                   \
    int M = rows(d), N = colsb(d) / 4, K = rows(b);                                                         \
    for (int m = 0; m < M; m++) {                                                                           \
      uint32_t acc[16];                                                                                     \
      memcpy(acc, S.t[d][m], 64);                                                                           \
      for (int k = 0; k < K; k++) {                                                                         \
        const TA* x = (const TA*)&S.t[a][m][4 * k];                                                         \
        const TB* y = (const TB*)S.t[b][k];                                                                 \
        for (int n = 0; n < 16; n++)                                                                        \
          acc[n] += (uint32_t)((int)x[0] * y[4 * n] + (int)x[1] * y[4 * n + 1] + (int)x[2] * y[4 * n + 2] + \
                               (int)x[3] * y[4 * n + 3]);                                                   \
      }                                                                                                     \
      memset(acc + N, 0, (16 - N) * 4u);                                                                    \
      memcpy(S.t[d][m], acc, 64);                                                                           \
    }                                                                                                       \
    for (int m = M; m < 16; m++) memset(S.t[d][m], 0, 64);                                                  \
  }
INT8(ss, int8_t, int8_t)
INT8(su, int8_t, uint8_t)
INT8(us, uint8_t, int8_t)
INT8(uu, uint8_t, uint8_t)

static float bf(const uint8_t* p) {
  uint32_t u = (uint32_t)(p[0] | p[1] << 8) << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}
static float hf(const uint8_t* p) { /* a half denormal is a normal float: kept */
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(p[0] | p[1] << 8)));
}
static float fma_ss(float a, float b, float c) { /* one rounding, under MXCSR: RNE, DAZ, FTZ */
  return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
}
static float add_ss(float a, float b) {
  return _mm_cvtss_f32(_mm_add_ss(_mm_set_ss(a), _mm_set_ss(b)));
}
static void fp(int d, int a, int b, float (*cv)(const uint8_t*)) {
  int M = rows(d), N = colsb(d) / 4, K = rows(b);
  unsigned csr = _mm_getcsr();
  _mm_setcsr(0x9fc0); /* masked, RNE, FTZ, DAZ */
  for (int m = 0; m < M; m++) {
    for (int n = 0; n < N; n++) {
      float e = 0, o = 0, c;
      for (int k = 0; k < K; k++) {
        e = fma_ss(cv(&S.t[a][m][4 * k]), cv(&S.t[b][k][4 * n]), e);
        o = fma_ss(cv(&S.t[a][m][4 * k + 2]), cv(&S.t[b][k][4 * n + 2]), o);
      }
      memcpy(&c, &S.t[d][m][4 * n], 4);
      c = add_ss(c, add_ss(e, o));
      memcpy(&S.t[d][m][4 * n], &c, 4);
    }
    memset(S.t[d][m] + 4 * N, 0, 64 - 4 * N);
  }
  for (int m = M; m < 16; m++) memset(S.t[d][m], 0, 64);
  _mm_setcsr(csr);
}

/* 1: done; 0: not ours or #UD; -1: #GP */
static int emulate(ucontext_t* u) {
  greg_t* g = u->uc_mcontext.gregs;
  const uint8_t *p = (const uint8_t*)g[REG_RIP], *q;
  if (p[0] != 0xc4 || (p[1] & 31) != 2) return 0;
  int R = !(p[1] & 0x80), X = !(p[1] & 0x40), B = !(p[1] & 0x20);
  int W = p[2] >> 7, vvvv = ~(p[2] >> 3) & 15, L = p[2] >> 2 & 1, pp = p[2] & 3, op = p[3];
  int mod = p[4] >> 6, reg = (p[4] >> 3 & 7) | R << 3, rm = p[4] & 7;
  if (W || L) return 0;
  if (op != 0x49 && op != 0x4b && op != 0x5e && op != 0x5c) return 0;

  if (op == 0x5e || op == 0x5c) {
    int a = rm | B << 3, b = vvvv;
    if (mod != 3 || reg > 7 || a > 7 || b > 7 || !ok_tmul(reg, a, b)) return 0;
    if (op == 0x5e)
      (pp == 0 ? uu : pp == 1 ? us : pp == 2 ? su : ss)(reg, a, b);
    else if (pp == 2)
      fp(reg, a, b, bf);
    else if (pp == 3)
      fp(reg, a, b, hf);
    else
      return 0;
    __atomic_fetch_add(&n_mul, 1, __ATOMIC_RELAXED);
    g[REG_RIP] += 5;
    return 1;
  }
  if (vvvv) return 0;
  if (mod == 3) {
    if (op != 0x49) return 0;
    if (pp == 0 && p[4] == 0xc0)
      memset(&S, 0, sizeof S);
    else if (pp == 3 && rm == 0 && reg < 8 && S.cfg[0] && rows(reg))
      memset(S.t[reg], 0, 1024);
    else
      return 0;
    g[REG_RIP] += 5;
    return 1;
  }
  /* memory operand */
  uint64_t base = 0, index = 0;
  int sib = rm == 4, riprel = 0;
  q = p + 5;
  if (sib) {
    int s = *q++, ib = (s & 7) | B << 3, ii = (s >> 3 & 7) | X << 3;
    if (!(mod == 0 && (s & 7) == 5)) base = g[reg_of[ib]];
    if (ii != 4) index = (uint64_t)g[reg_of[ii]] << (s >> 6);
    if (mod == 0 && (s & 7) == 5) mod = 2;
  } else if (mod == 0 && rm == 5) {
    riprel = 1;
    mod = 2;
  } else {
    base = g[reg_of[rm | B << 3]];
  }
  if (mod == 1)
    base += (int64_t)(int8_t)*q++;
  else if (mod == 2) {
    int32_t d;
    memcpy(&d, q, 4);
    q += 4;
    base += (int64_t)d;
  }
  if (riprel) base += (uint64_t)q;

  if (op == 0x49) {
    uint8_t* m = (uint8_t*)(base + index);
    if (reg & 7) return 0;
    if (pp == 0) {
      uint8_t c[64];
      memcpy(c, m, 64);
      if (c[0] > 1) return -1;
      if (c[0] == 1) {
        for (int i = 2; i < 16; i++)
          if (c[i]) return -1;
        for (int i = 32; i < 48; i++)
          if (c[i]) return -1;
        for (int i = 56; i < 64; i++)
          if (c[i]) return -1;
        for (int t = 0; t < 8; t++) {
          int cb = c[16 + 2 * t] | c[17 + 2 * t] << 8, r = c[48 + t];
          if (cb > 64 || r > 16 || !cb != !r) return -1;
        }
      }
      memset(&S, 0, sizeof S);
      if (c[0]) memcpy(S.cfg, c, 64);
    } else if (pp == 1) {
      memcpy(m, S.cfg, 64);
    } else
      return 0;
    __atomic_fetch_add(&n_cfg, 1, __ATOMIC_RELAXED);
  } else {
    if (!sib || reg > 7 || !ok_tile(reg) || pp == 0) return 0;
    int n = rows(reg), cb = colsb(reg);
    if (pp == 2) {
      for (int i = 0; i < n; i++) memcpy((void*)(base + (uint64_t)i * index), S.t[reg][i], cb);
    } else {
      memset(S.t[reg], 0, 1024);
      for (int i = 0; i < n; i++) memcpy(S.t[reg][i], (const void*)(base + (uint64_t)i * index), cb);
    }
    __atomic_fetch_add(&n_mem, 1, __ATOMIC_RELAXED);
  }
  g[REG_RIP] = (greg_t)q;
  return 1;
}

static void chain(int s, siginfo_t* si, void* uc, struct sigaction* o) {
  if (o->sa_flags & SA_SIGINFO) {
    o->sa_sigaction(s, si, uc);
    return;
  }
  if (o->sa_handler != SIG_DFL && o->sa_handler != SIG_IGN) {
    o->sa_handler(s);
    return;
  }
  signal(s, SIG_DFL); /* and fault again */
}
static void on_ill(int s, siginfo_t* si, void* uc) {
  int r = emulate(uc);
  if (r > 0) return;
  if (r < 0) {
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
    return;
  }
  chain(s, si, uc, &old_ill);
}

#ifndef ARCH_CPUID_OFF
#define ARCH_SET_CPUID 0x1012
#endif
static void on_segv(int s, siginfo_t* si, void* uc) {
  greg_t* g = ((ucontext_t*)uc)->uc_mcontext.gregs;
  const uint8_t* p = (const uint8_t*)g[REG_RIP];
  if (si->si_code == SI_KERNEL && p[0] == 0x0f && p[1] == 0xa2) {
    unsigned a, b, c, d, leaf = (unsigned)g[REG_RAX], sub = (unsigned)g[REG_RCX];
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, 1);
    __cpuid_count(leaf, sub, a, b, c, d);
    syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0);
    if (leaf == 0 && a < 0x1e) a = 0x1e;
    if (leaf == 7 && sub == 0) d |= 1u << 22 | 1u << 24 | 1u << 25;
    if (leaf == 0x1d) {
      a = sub == 0 ? 1 : sub == 1 ? 8192 | 1024 << 16 : 0;
      b = sub == 1 ? 64 | 8 << 16 : 0;
      c = sub == 1 ? 16 : 0;
      d = 0;
    }
    if (leaf == 0x1e) {
      a = c = d = 0;
      b = sub ? 0 : 16 | 64 << 8;
    }
    g[REG_RAX] = a;
    g[REG_RBX] = b;
    g[REG_RCX] = c;
    g[REG_RDX] = d;
    g[REG_RIP] += 2;
    return;
  }
  chain(s, si, uc, &old_segv);
}

static void stats(void) {
  fprintf(stderr, "amx_sigill: %lu multiplies, %lu tile moves, %lu configurations\n", n_mul, n_mem, n_cfg);
}

__attribute__((constructor)) static void install(void) {
  struct sigaction sa;
  memset(&sa, 0, sizeof sa);
  sa.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sa.sa_sigaction = on_ill;
  sigaction(SIGILL, &sa, &old_ill);
  if (getenv("AMX_SIGILL_CPUID")) {
    sa.sa_sigaction = on_segv;
    sigaction(SIGSEGV, &sa, &old_segv);
    if (syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0)) perror("amx_sigill: CPUID faulting");
  }
  if (getenv("AMX_SIGILL_STATS")) atexit(stats);
}

/* libc's syscall(): answer the two AMX permission calls ourselves */
/* Takes six arguments whatever was given: AddressSanitizer would see a read past the caller's. */
__attribute__((no_sanitize("address"))) long syscall(long n, ...) {
  va_list ap;
  long a[6];
  va_start(ap, n);
  for (int i = 0; i < 6; i++) a[i] = va_arg(ap, long);
  va_end(ap);
  if (n == SYS_arch_prctl && a[0] == 0x1023 && a[1] == 18) return 0;
  if (n == SYS_arch_prctl && a[0] == 0x1022) {
    *(unsigned long*)a[1] = 0x602e7;
    return 0;
  }
  long r;
  register long r10 __asm__("r10") = a[3];
  register long r8 __asm__("r8") = a[4];
  register long r9 __asm__("r9") = a[5];
  __asm__ volatile("syscall"
                   : "=a"(r)
                   : "a"(n), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  if (r < 0 && r > -4096) {
    errno = (int)-r;
    return -1;
  }
  return r;
}
