/* Preloaded library that records a process's operations on the files below one folder.

   RECORDED_FOLDER names the folder, RECORD_FILE where to write. Each call adds one record, in one piece, after it has
   succeeded; a sync names the length that the record had when it began, for it covers nothing that came later. Calls
   that change names are made one at a time, so that their records are in their order. recording.py reads it. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPENED = 1, WRITTEN, CUT, SYNCED, RENAMED, UNLINKED, MADE };

struct header {
    uint32_t magic, kind;
    uint64_t length, inode;
    int64_t place, begin;
    uint32_t path, second;
    uint64_t data;
} __attribute__((packed));

static const char *folder;
static size_t folder_length;
static int record = -1;
static pthread_mutex_t names = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void begin(void) {
    folder = getenv("RECORDED_FOLDER");
    const char *path = getenv("RECORD_FILE");
    if (folder && path) {
        folder_length = strlen(folder);
        record = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    }
}

static int is_below(const char *path) {
    return record >= 0 && !strncmp(path, folder, folder_length) && (path[folder_length] == '/' || !path[folder_length]);
}

/* Return whether a descriptor belongs to a file below the folder, and which. */
static int is_ours(int descriptor, char *path, uint64_t *inode) {
    if (record < 0 || descriptor == record) return 0;
    char link[40];
    int error = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, path, 4095);
    struct stat status;
    int ours = size > 0 && (path[size] = 0, is_below(path)) && !fstat(descriptor, &status);
    errno = error;
    if (ours) *inode = status.st_ino;
    return ours;
}

/* Return the full path of a name below a descriptor's folder; 0 when it is outside the recorded folder. */
static int resolve(int at, const char *name, char *path) {
    if (record < 0) return 0;
    if (*name == '/') {
        snprintf(path, 4096, "%s", name);
    } else {
        char link[40] = "/proc/self/cwd", base[4096];
        if (at != AT_FDCWD) snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, base, sizeof base - 1);
        if (size <= 0) return 0;
        base[size] = 0;
        if (size + strlen(name) > 4000) return 0;
        sprintf(path, "%s/%s", base, name);
    }
    return is_below(path);
}

static int64_t length_of_record(void) { return syscall(SYS_lseek, record, 0, SEEK_END); }

static void note(int kind, uint64_t inode, int64_t place, int64_t begun, const char *path, const char *second,
                 const struct iovec *data, int count, size_t size) {
    struct header head = {0x314c5750, kind, 0, inode, place, begun, path ? strlen(path) : 0, second ? strlen(second) : 0, size};
    head.length = sizeof head + head.path + head.second + size;
    struct iovec parts[3 + 64] = {{&head, sizeof head}, {(char *)path, head.path}, {(char *)second, head.second}};
    int used = 3, error = errno;
    for (int i = 0; i < count && size; i++) {
        size_t taken = data[i].iov_len < size ? data[i].iov_len : size;
        if (used == 3 + 64) abort();
        parts[used++] = (struct iovec){data[i].iov_base, taken};
        size -= taken;
    }
    if (syscall(SYS_writev, record, parts, used) != (long)head.length) abort();
    errno = error;
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static void noted_write(int descriptor, int64_t place, const struct iovec *data, int count, ssize_t size) {
    char path[4096];
    uint64_t inode;
    if (size <= 0 || !is_ours(descriptor, path, &inode)) return;
    if (place < 0) place = syscall(SYS_lseek, descriptor, 0, SEEK_CUR) - size;
    note(WRITTEN, inode, place, 0, 0, 0, data, count, size);
}

ssize_t write(int descriptor, const void *data, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    ssize_t done = real(descriptor, data, size);
    struct iovec one = {(void *)data, size};
    noted_write(descriptor, -1, &one, 1, done);
    return done;
}

ssize_t writev(int descriptor, const struct iovec *data, int count) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    ssize_t done = real(descriptor, data, count);
    noted_write(descriptor, -1, data, count, done);
    return done;
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t place) {
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    ssize_t done = real(descriptor, data, size, place);
    struct iovec one = {(void *)data, size};
    noted_write(descriptor, place, &one, 1, done);
    return done;
}
ssize_t pwrite(int descriptor, const void *data, size_t size, off_t place) { return pwrite64(descriptor, data, size, place); }

ssize_t pwritev64(int descriptor, const struct iovec *data, int count, off64_t place) {
    REAL(ssize_t, "pwritev64", int, const struct iovec *, int, off64_t);
    ssize_t done = real(descriptor, data, count, place);
    noted_write(descriptor, place, data, count, done);
    return done;
}
ssize_t pwritev(int descriptor, const struct iovec *data, int count, off_t place) { return pwritev64(descriptor, data, count, place); }

static void noted_size(int descriptor) {
    char path[4096];
    uint64_t inode;
    struct stat status;
    if (is_ours(descriptor, path, &inode) && !fstat(descriptor, &status)) note(CUT, inode, status.st_size, 0, 0, 0, 0, 0, 0);
}

int ftruncate64(int descriptor, off64_t size) {
    REAL(int, "ftruncate64", int, off64_t);
    int done = real(descriptor, size);
    if (!done) noted_size(descriptor);
    return done;
}
int ftruncate(int descriptor, off_t size) { return ftruncate64(descriptor, size); }

int posix_fallocate64(int descriptor, off64_t place, off64_t size) {
    REAL(int, "posix_fallocate64", int, off64_t, off64_t);
    int done = real(descriptor, place, size);
    if (!done) noted_size(descriptor);
    return done;
}
int posix_fallocate(int descriptor, off_t place, off_t size) { return posix_fallocate64(descriptor, place, size); }

int truncate64(const char *name, off64_t size) {
    int descriptor = open(name, O_WRONLY | O_CLOEXEC);
    if (descriptor < 0) return -1;
    int done = ftruncate64(descriptor, size), error = errno;
    close(descriptor);
    errno = error;
    return done;
}
int truncate(const char *name, off_t size) { return truncate64(name, size); }

static int synced(int descriptor, int (*real)(int)) {
    char path[4096];
    uint64_t inode;
    int ours = is_ours(descriptor, path, &inode);
    int64_t begun = ours ? length_of_record() : 0;
    int done = real(descriptor);
    if (ours && !done) note(SYNCED, inode, 0, begun, path, 0, 0, 0, 0);
    return done;
}

int fsync(int descriptor) {
    REAL(int, "fsync", int);
    return synced(descriptor, real);
}

int fdatasync(int descriptor) {
    REAL(int, "fdatasync", int);
    return synced(descriptor, real);
}

int openat64(int at, const char *name, int flags, ...) {
    REAL(int, "openat64", int, const char *, int, ...);
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0;
    va_end(more);
    char path[4096];
    if (!(flags & (O_CREAT | O_TRUNC)) || !resolve(at, name, path)) return real(at, name, flags, mode);
    pthread_mutex_lock(&names);
    int descriptor = real(at, name, flags, mode);
    uint64_t inode;
    if (descriptor >= 0 && is_ours(descriptor, path, &inode)) note(OPENED, inode, flags & O_TRUNC ? 0 : -1, 0, path, 0, 0, 0, 0);
    pthread_mutex_unlock(&names);
    return descriptor;
}

#define MODE_OF(flags, mode) \
    va_list more; \
    va_start(more, flags); \
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0; \
    va_end(more)

int openat(int at, const char *name, int flags, ...) { MODE_OF(flags, mode); return openat64(at, name, flags, mode); }
int open64(const char *name, int flags, ...) { MODE_OF(flags, mode); return openat64(AT_FDCWD, name, flags, mode); }
int open(const char *name, int flags, ...) { MODE_OF(flags, mode); return openat64(AT_FDCWD, name, flags, mode); }
int creat64(const char *name, mode_t mode) { return openat64(AT_FDCWD, name, O_WRONLY | O_CREAT | O_TRUNC, mode); }
int creat(const char *name, mode_t mode) { return creat64(name, mode); }
int __open_2(const char *name, int flags) { return openat64(AT_FDCWD, name, flags); }
int __open64_2(const char *name, int flags) { return openat64(AT_FDCWD, name, flags); }
int __openat_2(int at, const char *name, int flags) { return openat64(at, name, flags); }
int __openat64_2(int at, const char *name, int flags) { return openat64(at, name, flags); }

FILE *fopen64(const char *name, const char *mode) {
    /* The C library's own later writes are not intercepted; readers compare the files instead. */
    REAL(FILE *, "fopen64", const char *, const char *);
    char path[4096];
    if (*mode == 'r' || !resolve(AT_FDCWD, name, path)) return real(name, mode);
    pthread_mutex_lock(&names);
    FILE *file = real(name, mode);
    uint64_t inode;
    if (file && is_ours(fileno(file), path, &inode)) note(OPENED, inode, *mode == 'w' ? 0 : -1, 0, path, 0, 0, 0, 0);
    pthread_mutex_unlock(&names);
    return file;
}
FILE *fopen(const char *name, const char *mode) { return fopen64(name, mode); }

int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned flags) {
    char path[4096], second[4096];
    int ours = resolve(from_at, from, path) & resolve(to_at, to, second);
    pthread_mutex_lock(&names);
    int done = syscall(SYS_renameat2, from_at, from, to_at, to, flags);
    if (ours && !done) note(RENAMED, 0, 0, 0, path, second, 0, 0, 0);
    pthread_mutex_unlock(&names);
    return done;
}
int renameat(int from_at, const char *from, int to_at, const char *to) { return renameat2(from_at, from, to_at, to, 0); }
int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }

int unlinkat(int at, const char *name, int flags) {
    char path[4096];
    int ours = resolve(at, name, path);
    pthread_mutex_lock(&names);
    int done = syscall(SYS_unlinkat, at, name, flags);
    if (ours && !done) note(UNLINKED, 0, 0, 0, path, 0, 0, 0, 0);
    pthread_mutex_unlock(&names);
    return done;
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }
int remove(const char *name) {
    int done = unlink(name);
    return done && (errno == EISDIR || errno == EPERM) ? rmdir(name) : done;
}

int mkdirat(int at, const char *name, mode_t mode) {
    char path[4096];
    int ours = resolve(at, name, path);
    pthread_mutex_lock(&names);
    int done = syscall(SYS_mkdirat, at, name, mode);
    if (ours && !done) {
        struct stat status;
        fstatat(at, name, &status, 0);
        note(MADE, status.st_ino, 0, 0, path, 0, 0, 0, 0);
    }
    pthread_mutex_unlock(&names);
    return done;
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }
