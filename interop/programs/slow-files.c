/*
 * slow-files.so: preloaded into a server, it makes the files of a directory slow, as a tape system does. While the
 * file $SLOW_WHILE exists, opening a file below $SLOW_DIR for reading waits. Other calls and other files do not wait.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define LOOK_AGAIN_MICROSECONDS 100000

static void be_slow(const char *path, int flags) {
    const char *directory = getenv("SLOW_DIR"), *slow = getenv("SLOW_WHILE");
    int reads = (flags & O_ACCMODE) == O_RDONLY && !(flags & O_DIRECTORY);
    if (!reads || !directory || !slow || strncmp(path, directory, strlen(directory)) != 0) return;
    while (access(slow, F_OK) == 0) usleep(LOOK_AGAIN_MICROSECONDS);
}

static int next(const char *name, const char *path, int flags, mode_t mode) {
    int (*real)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, name);
    be_slow(path, flags);
    return real(path, flags, mode);
}

#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...) {                                                                       \
        mode_t mode = 0;                                                                                               \
        if (flags & O_CREAT) {                                                                                         \
            va_list rest;                                                                                              \
            va_start(rest, flags);                                                                                     \
            mode = va_arg(rest, mode_t);                                                                               \
            va_end(rest);                                                                                              \
        }                                                                                                              \
        return next(#name, path, flags, mode);                                                                         \
    }

OPEN(open)
OPEN(open64)
