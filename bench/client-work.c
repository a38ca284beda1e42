/* The operations of bench/client on a directory, one word for each kind; prints seconds and the number of operations.
   In C, so that the measurement shows the file system. "still" waits until the network interface $LINK has been almost idle for a
   number of milliseconds, and prints the time of its last traffic; without $LINK, the current time. */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char buffer[1 << 20];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static double time_of_day(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static long sent(const char *link) { /* bytes so far */
    char path[128];
    long bytes;
    snprintf(path, sizeof path, "/sys/class/net/%s/statistics/tx_bytes", link);
    FILE *f = fopen(path, "r");
    if (!f || fscanf(f, "%ld", &bytes) != 1) err(1, "%s", path);
    fclose(f);
    return bytes;
}

static double still(long milliseconds) {
    const char *link = getenv("LINK");
    double last = time_of_day();
    if (!link) return last;
    long mark = sent(link);
    while (time_of_day() - last < milliseconds / 1e3) {
        usleep(2000);
        long bytes = sent(link);
        if (bytes > mark + 512) mark = bytes, last = time_of_day(); /* less is a keep-alive */
    }
    return last;
}

static const char *name(long n) { /* 100 files in each directory */
    static char text[64];
    snprintf(text, sizeof text, "d%ld/f%ld", n / 100, n);
    return text;
}

static int opened(const char *path, int flags) {
    int fd = open(path, flags, 0644);
    if (fd < 0) err(1, "%s", path);
    return fd;
}

static void all(int fd, size_t size, int writing, off_t at) {
    ssize_t n = writing ? pwrite(fd, buffer, size, at) : pread(fd, buffer, size, at);
    if (n != (ssize_t)size) err(1, writing ? "write" : "read");
}

int main(int argc, char **argv) {
    if (argc != 3) errx(2, "WORK COUNT");
    const char *work = argv[1];
    long count = atol(argv[2]), n;
    struct stat st;
    memset(buffer, 'x', sizeof buffer);
    if (!strcmp(work, "dirs")) {
        for (n = 0; n < count; n += 100) {
            char text[32];
            snprintf(text, sizeof text, "d%ld", n / 100);
            if (mkdir(text, 0755)) err(1, "%s", text);
        }
        return 0;
    }
    if (!strcmp(work, "still")) {
        printf("%.6f\n", still(count));
        return 0;
    }
    double from = now();
    if (!strcmp(work, "create")) {
        for (n = 0; n < count; n++) {
            int fd = opened(name(n), O_CREAT | O_EXCL | O_WRONLY);
            all(fd, 4096, 1, 0);
            if (close(fd)) err(1, "close");
        }
    } else if (!strcmp(work, "read")) {
        for (n = 0; n < count; n++) {
            int fd = opened(name(n), O_RDONLY);
            all(fd, 4096, 0, 0);
            close(fd);
        }
    } else if (!strcmp(work, "stat")) {
        for (n = 0; n < count; n++)
            if (stat(name(n), &st)) err(1, "%s", name(n));
    } else if (!strcmp(work, "unlink")) {
        for (n = 0; n < count; n++)
            if (unlink(name(n))) err(1, "%s", name(n));
    } else if (!strcmp(work, "write-big") || !strcmp(work, "write-random")) { /* MiB; the second makes the file for random-read and random-write */
        int fd = opened(work + 6, O_CREAT | O_WRONLY | O_TRUNC);
        for (n = 0; n < count; n++) all(fd, sizeof buffer, 1, (off_t)n << 20);
        if (close(fd)) err(1, "close");
    } else if (!strcmp(work, "read-big")) {
        int fd = opened("big", O_RDONLY);
        for (n = 0; n < count; n++) all(fd, sizeof buffer, 0, (off_t)n << 20);
        close(fd);
    } else if (!strcmp(work, "random-read") || !strcmp(work, "random-write")) { /* 4 KiB, within 64 MiB */
        int writing = work[7] == 'w';
        int fd = opened("random", writing ? O_RDWR : O_RDONLY);
        unsigned seed = 1;
        for (n = 0; n < count; n++) {
            seed = seed * 1103515245u + 12345u;
            all(fd, 4096, writing, (off_t)(seed / 7 % 16384) * 4096);
        }
        if (close(fd)) err(1, "close");
    } else
        errx(2, "%s?", work);
    printf("%.6f %ld\n", now() - from, count);
    return 0;
}
