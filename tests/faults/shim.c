/* Makes the n-th open, write, fsync, ftruncate or rename below one folder fail, or kills the process there. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum { OPEN, WRITE, FSYNC, FTRUNCATE, RENAME };

static char place[PATH_MAX];
static int kind_due = -1, number_due, error_due, for_good, seen;

/* error 0 kills; for good: every later call fails, too */
void fault_arm(const char *folder, int kind, int number, int error, int stays) {
    snprintf(place, sizeof place, "%s", folder);
    number_due = number, error_due = error, for_good = stays, seen = 0;
    kind_due = kind;
}

int fault_disarm(void) {
    kind_due = -1;
    return seen;
}

static int due(int kind, const char *path) {
    if (kind != kind_due || !path || strncmp(path, place, strlen(place)))
        return 0;
    int number = __sync_add_and_fetch(&seen, 1);
    if (number < number_due || (number > number_due && !for_good))
        return 0;
    if (!error_due)
        kill(getpid(), SIGKILL);
    errno = error_due;
    return number == number_due ? 1 : 2;
}

static int due_at(int kind, int file) {
    char link[64], path[PATH_MAX];
    if (kind != kind_due)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    return due(kind, path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define MODE(flags) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | __O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }

int open(const char *path, int flags, ...) { MODE(flags) return due(OPEN, path) ? -1 : REAL(open)(path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return due(OPEN, path) ? -1 : REAL(open64)(path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags) return due(OPEN, path) ? -1 : REAL(openat)(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags) return due(OPEN, path) ? -1 : REAL(openat64)(at, path, flags, mode); }

/* a disk that fills up takes a part first */
#define WRITES(found, size, whole, part) \
    int found = due_at(WRITE, file); \
    if (found == 1 && error_due == ENOSPC && for_good && size > 1) return part; \
    return found ? -1 : whole;
ssize_t write(int file, const void *raw, size_t size) { WRITES(found, size, REAL(write)(file, raw, size), REAL(write)(file, raw, size / 2)) }
ssize_t pwrite(int file, const void *raw, size_t size, off_t offset) { WRITES(found, size, REAL(pwrite)(file, raw, size, offset), REAL(pwrite)(file, raw, size / 2, offset)) }
ssize_t pwrite64(int file, const void *raw, size_t size, off64_t offset) { WRITES(found, size, REAL(pwrite64)(file, raw, size, offset), REAL(pwrite64)(file, raw, size / 2, offset)) }

int fsync(int file) { return due_at(FSYNC, file) ? -1 : REAL(fsync)(file); }
int fdatasync(int file) { return due_at(FSYNC, file) ? -1 : REAL(fdatasync)(file); }
int ftruncate(int file, off_t size) { return due_at(FTRUNCATE, file) ? -1 : REAL(ftruncate)(file, size); }
int ftruncate64(int file, off64_t size) { return due_at(FTRUNCATE, file) ? -1 : REAL(ftruncate64)(file, size); }
int rename(const char *from, const char *to) { return due(RENAME, to) ? -1 : REAL(rename)(from, to); }
int renameat(int at, const char *from, int there, const char *to) { return due(RENAME, to) ? -1 : REAL(renameat)(at, from, there, to); }
