/* LD_PRELOAD for redis-server: shifts the wall clock of one process by the milliseconds (a 64-bit
 * integer in the machine's own order) at the head of the file that CLOCKSHIM names. Monotonic clocks
 * are left alone. Allocates nothing, so that it may be called before the allocator is ready. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#ifndef TRAPPED /* the clock that clients/suspend.c moves in its system call */
#define TRAPPED -1
#endif

static int64_t offset_ns(void) {
    static volatile int64_t *shared;
    if (!shared) {
        const char *path = getenv("CLOCKSHIM");
        int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        if (file < 0) return 0;
        void *page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
        close(file);
        if (page == MAP_FAILED) return 0;
        shared = page;
    }
    return *shared * 1000000LL;
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    int failed = (int)syscall(SYS_clock_gettime, clock, out);
    if (!failed && clock != TRAPPED && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t ns = (int64_t)out->tv_sec * 1000000000LL + out->tv_nsec + offset_ns();
        out->tv_sec = ns / 1000000000LL;
        out->tv_nsec = ns % 1000000000LL;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec now;
    int failed = clock_gettime(CLOCK_REALTIME, &now);
    (void)zone;
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
