/*
 * Lets OpenAFS's aklog, tokens, unlog, vos, pts and bos keep tokens on a machine without an AFS kernel module.
 *
 * They hand a token to the cache manager, and ask for it, by an ioctl on /proc/fs/openafs/afs_ioctl. As a preloaded
 * library (LD_PRELOAD), this program serves that file from $CELLAR_TEST_TOKENS, a directory with one file per cell. The
 * file has the token in the form in which it was handed over. Any other request to a cache manager gets EINVAL.
 *
 * The request's layout: struct afsprocdata { param4, param3, param2, param1, syscall }, longs; syscall 20 is pioctl
 * (path, command, struct ViceIoctl { in, out, in_size, out_size }, follow); commands 'V' 3 set, 8 get the n-th,
 * 9 and 21 forget all; 'O' 3 forget a cell's. Source: OpenAFS 1.8 (src/config/afs_args.h, vioc.h, src/auth/ktc.c).
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define DOOR "/proc/fs/openafs/afs_ioctl"

struct request {
    long param4, param3, param2, param1, syscall;
};
struct vice_ioctl {
    char *in, *out;
    short in_size, out_size;
};

static int door = -1; /* the descriptor that stands for DOOR */

static int knock(const char *path) {
    const char *directory = getenv("CELLAR_TEST_TOKENS");
    if (directory == NULL || strcmp(path, DOOR) != 0)
        return 0;
    mkdir(directory, 0700);
    return 1;
}

static int open_as(const char *name, const char *path, int flags, mode_t mode) {
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, name);
    if (!knock(path))
        return real(path, flags, mode);
    return door = real("/dev/null", O_RDONLY | O_CLOEXEC);
}

#define OPEN(NAME)                                                                                                     \
    int NAME(const char *path, int flags, ...) {                                                                       \
        mode_t mode = 0;                                                                                               \
        if (flags & (O_CREAT | __O_TMPFILE)) {                                                                         \
            va_list more;                                                                                              \
            va_start(more, flags);                                                                                     \
            mode = va_arg(more, mode_t);                                                                               \
            va_end(more);                                                                                              \
        }                                                                                                              \
        return open_as(#NAME, path, flags, mode);                                                                      \
    }
OPEN(open)
OPEN(open64)

/* The offset of the cell's name in a token: after the ticket, the clear part and a flag, each with its length. */
static const char *cell_of(const char *token, int size) {
    int ticket, clear;
    if (size < 8)
        return NULL;
    memcpy(&ticket, token, 4);
    if (ticket < 0 || ticket > size - 8)
        return NULL;
    memcpy(&clear, token + 4 + ticket, 4);
    if (clear < 0 || clear > size - 13 - ticket || memchr(token + 12 + ticket + clear, 0, size - 12 - ticket - clear) == NULL)
        return NULL;
    return token + 12 + ticket + clear;
}

static int refuse(int why) {
    errno = why;
    return -1;
}

static void path_of(char *path, size_t size, const char *cell) {
    snprintf(path, size, "%s/%s", getenv("CELLAR_TEST_TOKENS"), cell);
}

static int set(struct vice_ioctl *io) {
    char path[4096];
    const char *cell = cell_of(io->in, io->in_size);
    FILE *file;
    if (cell == NULL || *cell == 0 || strchr(cell, '/') != NULL)
        return refuse(EINVAL);
    path_of(path, sizeof path, cell);
    file = fopen(path, "w");
    if (file == NULL)
        return -1;
    fchmod(fileno(file), 0600);
    fwrite(io->in, 1, io->in_size, file);
    return fclose(file) == 0 ? 0 : -1;
}

/* The n-th token, in the order of the names. */
static int get(struct vice_ioctl *io) {
    struct dirent **names;
    char path[4096];
    int wanted, i, done = -1;
    int count = scandir(getenv("CELLAR_TEST_TOKENS"), &names, NULL, alphasort);
    if (count < 0 || io->in_size < 4)
        return refuse(EDOM);
    memcpy(&wanted, io->in, 4);
    for (i = 0; i < count; i++) {
        if (names[i]->d_name[0] != '.' && wanted-- == 0) {
            FILE *file;
            path_of(path, sizeof path, names[i]->d_name);
            if ((file = fopen(path, "r")) != NULL) {
                done = (int)fread(io->out, 1, io->out_size, file);
                fclose(file);
            }
        }
        free(names[i]);
    }
    free(names);
    return done > 0 ? 0 : refuse(EDOM);
}

static int forget(const char *only) {
    struct dirent *entry;
    char path[4096];
    DIR *directory = opendir(getenv("CELLAR_TEST_TOKENS"));
    if (directory == NULL)
        return 0;
    while ((entry = readdir(directory)) != NULL)
        if (entry->d_name[0] != '.' && (only == NULL || strcmp(only, entry->d_name) == 0)) {
            path_of(path, sizeof path, entry->d_name);
            unlink(path);
        }
    closedir(directory);
    return 0;
}

static int answer(const struct request *request) {
    struct vice_ioctl *io = (struct vice_ioctl *)request->param3;
    if (request->syscall != 20)
        return refuse(EINVAL);
    switch (_IOC_TYPE(request->param2) << 8 | _IOC_NR(request->param2)) {
    case 'V' << 8 | 3: return set(io);
    case 'V' << 8 | 8: return get(io);
    case 'V' << 8 | 9:
    case 'V' << 8 | 21: return forget(NULL);
    case 'O' << 8 | 3: return forget(io->in);
    default: return refuse(EINVAL);
    }
}

int ioctl(int fd, unsigned long number, ...) {
    int (*real)(int, unsigned long, ...) = dlsym(RTLD_NEXT, "ioctl");
    va_list more;
    void *argument;
    va_start(more, number);
    argument = va_arg(more, void *);
    va_end(more);
    return fd >= 0 && fd == door ? answer(argument) : real(fd, number, argument);
}
