// Preloaded into the C programs. The providers of libfabric that are not tested here look functions
// of the kernel up when it is loaded, and read all of the kernel's symbols for that: this takes far
// more processor time than anything else that most of the programs do. The answer is no in any case.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef FILE *open_function(const char *, const char *);

static FILE *without_symbols(const char *name, const char *path, const char *mode)
{
    open_function *next = (open_function *)dlsym(RTLD_NEXT, name);
    return next(strcmp(path, "/proc/kallsyms") ? path : "/dev/null", mode);
}

FILE *fopen(const char *restrict path, const char *restrict mode)
{
    return without_symbols("fopen", path, mode);
}

FILE *fopen64(const char *restrict path, const char *restrict mode)
{
    return without_symbols("fopen64", path, mode);
}
