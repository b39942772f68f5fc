// Hides a processor's newer instructions from the programs of one process: preloaded with LD_PRELOAD.
//
// Linux can make the CPUID instruction fault (arch_prctl(2), ARCH_SET_CPUID; the flag `cpuid_fault` in
// /proc/cpuinfo). The handler here answers it with what the processor says, less AVX-512, AMX and the
// VNNI of AVX2: what lies above x86-64-v3. With LEVEL 2, AVX, AVX2, FMA, F16C and BMI are left out, too.
// Libraries that choose their kernels by CPUID then choose as on such a machine. The C library itself has
// chosen its memcpy before this file is loaded.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define ARCH_SET_CPUID 0x1012
#define BIT(n) (1u << (n))
#ifndef LEVEL
#define LEVEL 3
#endif

static int (*real_sigaction)(int, const struct sigaction *, struct sigaction *);

static long allow_cpuid(long allowed) { return syscall(SYS_arch_prctl, ARCH_SET_CPUID, allowed); }

struct registers { unsigned a, b, c, d; };

static void hide(unsigned leaf, unsigned sub, struct registers *r) {
  if (leaf == 1 && LEVEL < 3) {
    r->c &= ~(BIT(12) | BIT(28) | BIT(29));  // fma, avx, f16c
  }
  if (leaf == 7 && sub == 0) {
    r->b &= ~(BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31));  // avx512*
    r->c &= ~(BIT(1) | BIT(6) | BIT(11) | BIT(12) | BIT(14));  // avx512 vbmi, vbmi2, vnni, bitalg, vpopcntdq
    r->d &= ~(BIT(2) | BIT(3) | BIT(8) | BIT(22) | BIT(23) | BIT(24) | BIT(25));  // avx512*, amx*
    if (LEVEL < 3) {
      r->b &= ~(BIT(3) | BIT(5) | BIT(8));  // bmi1, avx2, bmi2
      r->c &= ~(BIT(9) | BIT(10));          // vaes, vpclmulqdq
    }
  }
  if (leaf == 7 && sub == 1) {
    r->a &= ~(BIT(4) | BIT(5) | BIT(21) | BIT(23));        // avx_vnni, avx512_bf16, amx_fp16, avx_ifma
    r->d &= ~(BIT(4) | BIT(5) | BIT(8) | BIT(10) | BIT(19));  // avx_vnni_int*, amx_complex, avx10
  }
}

static void on_fault(int number, siginfo_t *info, void *context) {
  (void)number;
  greg_t *at = ((ucontext_t *)context)->uc_mcontext.gregs;
  const unsigned char *code = (const unsigned char *)at[REG_RIP];
  if (info->si_code != SI_KERNEL || code[0] != 0x0f || code[1] != 0xa2) {
    // No CPUID: a fault as any other. It happens again, and ends the process.
    struct sigaction dies;
    memset(&dies, 0, sizeof dies);
    dies.sa_handler = SIG_DFL;
    real_sigaction(SIGSEGV, &dies, NULL);
    return;
  }
  unsigned leaf = (unsigned)at[REG_RAX], sub = (unsigned)at[REG_RCX];
  struct registers r = {leaf, 0, sub, 0};
  allow_cpuid(1);
  __asm__ volatile("cpuid" : "+a"(r.a), "=b"(r.b), "+c"(r.c), "=d"(r.d));
  allow_cpuid(0);
  hide(leaf, sub, &r);
  at[REG_RAX] = r.a;
  at[REG_RBX] = r.b;
  at[REG_RCX] = r.c;
  at[REG_RDX] = r.d;
  at[REG_RIP] += 2;
}

// Others that ask for SIGSEGV (crash reports, mostly) must not take the handler away.
int sigaction(int number, const struct sigaction *wanted, struct sigaction *before) {
  if (number == SIGSEGV && wanted != NULL) {
    if (before != NULL) memset(before, 0, sizeof *before);
    return 0;
  }
  return real_sigaction(number, wanted, before);
}

sighandler_t signal(int number, sighandler_t handler) {
  struct sigaction wanted, before;
  memset(&wanted, 0, sizeof wanted);
  wanted.sa_handler = handler;
  wanted.sa_flags = SA_RESTART;
  if (sigaction(number, &wanted, &before) != 0) return SIG_ERR;
  return before.sa_handler;
}

__attribute__((constructor)) static void begin(void) {
  real_sigaction = (int (*)(int, const struct sigaction *, struct sigaction *))dlsym(RTLD_NEXT, "sigaction");
  struct sigaction answers;
  memset(&answers, 0, sizeof answers);
  answers.sa_sigaction = on_fault;
  answers.sa_flags = SA_SIGINFO | SA_NODEFER;
  if (real_sigaction(SIGSEGV, &answers, NULL) != 0 || allow_cpuid(0) != 0) {
    static const char text[] = "CPUID cannot be hidden on this machine\n";
    ssize_t written = write(2, text, sizeof text - 1);
    (void)written;
    _exit(125);
  }
}
