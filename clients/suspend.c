/* LD_PRELOAD for a client under clients/conformance.py: CLOCK_BOOTTIME and the wall clock jump ahead by what the file that
 * CLOCKSHIM names says, while CLOCK_MONOTONIC and all timers run on, as after a suspend of the machine.
 *
 * A program may read CLOCK_BOOTTIME by libc, by the vDSO or by a system call of its own (Rust's `rustix` does all three). So the
 * vDSO is hidden from getauxval(3), and seccomp(2) passes the system call to a handler, which adds the jump.
 *
 * With -DTRAPPED=CLOCK_REALTIME the wall clock alone jumps, however it is read, as where somebody sets it. */
#ifndef TRAPPED
#define TRAPPED CLOCK_BOOTTIME
#endif
#include "../tests/chaos/clockshim.c"

#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <semaphore.h>
#include <signal.h>
#include <stddef.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <ucontext.h>

/* How much the trapped clock was ahead of CLOCK_MONOTONIC when the program began. */
static int64_t ahead_ns;

static int64_t nanos(clockid_t clock) {
    struct timespec now;
    syscall(SYS_clock_gettime, clock, &now);
    return (int64_t)now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Instead of clock_gettime(TRAPPED, out). */
static void on_clock_gettime(int signal, siginfo_t *info, void *context) {
    mcontext_t *machine = &((ucontext_t *)context)->uc_mcontext;
#ifdef __x86_64__
    struct timespec *out = (struct timespec *)machine->gregs[REG_RSI];
    machine->gregs[REG_RAX] = 0;
#else
    struct timespec *out = (struct timespec *)machine->regs[1];
    machine->regs[0] = 0;
#endif
    int64_t ns = nanos(CLOCK_MONOTONIC) + ahead_ns + offset_ns();
    out->tv_sec = ns / 1000000000LL;
    out->tv_nsec = ns % 1000000000LL;
    (void)signal;
    (void)info;
}

__attribute__((constructor)) static void intercept(void) {
    struct sigaction action = {.sa_sigaction = on_clock_gettime, .sa_flags = SA_SIGINFO};
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_gettime, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, TRAPPED, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof rules / sizeof *rules, .filter = rules};
    offset_ns(); /* opens the file */
    ahead_ns = nanos(TRAPPED) - nanos(CLOCK_MONOTONIC);
    if (sigaction(SIGSYS, &action, NULL) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0))
        abort();
}

unsigned long getauxval(unsigned long type) {
    static unsigned long (*next)(unsigned long);
    if (type == AT_SYSINFO_EHDR) return 0;
    if (!next) next = (unsigned long (*)(unsigned long))dlsym(RTLD_NEXT, "getauxval");
    return next(type);
}

/* The waits of Python up to 3.10 end by the wall clock, which the kernel has not moved. */
int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict end) {
    int64_t ns = (int64_t)end->tv_sec * 1000000000LL + end->tv_nsec - offset_ns();
    struct timespec real = {.tv_sec = ns / 1000000000LL, .tv_nsec = ns % 1000000000LL};
    return sem_clockwait(semaphore, CLOCK_REALTIME, &real);
}
