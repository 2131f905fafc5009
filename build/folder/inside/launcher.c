/* The program that a user starts: <folder>/dislock and <folder>/bin/python3.
 *
 * It finds its own folder and starts the folder's own interpreter with the folder's own loader and C library. It uses
 * no C library itself, so that it runs in an image with another C library or with none. It passes the libraries to the
 * loader as an argument, because the command would inherit LD_LIBRARY_PATH.
 *
 * PYTHON is defined for bin/python3; LOADER is the loader's file name.
 */

#define ROOM 4096

typedef unsigned long word;

#if defined(__x86_64__)
enum { SYS_write = 1, SYS_execve = 59, SYS_exit = 231, SYS_readlinkat = 267 };
static long call(long number, long a, long b, long c, long d)
{
    long result;
    register long r10 __asm__("r10") = d;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
                     : "rcx", "r11", "memory");
    return result;
}
__asm__(".globl _start\n_start:\n xor %ebp,%ebp\n mov %rsp,%rdi\n and $-16,%rsp\n call start\n");
#elif defined(__aarch64__)
enum { SYS_write = 64, SYS_execve = 221, SYS_exit = 94, SYS_readlinkat = 78 };
static long call(long number, long a, long b, long c, long d)
{
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    return x0;
}
__asm__(".globl _start\n_start:\n mov x29,#0\n mov x0,sp\n bl start\n");
#else
#error "no system calls known for this architecture"
#endif

static word length(const char *text)
{
    word n = 0;
    while (text[n])
        n++;
    return n;
}

static void say(const char *text)
{
    call(SYS_write, 2, (long)text, (long)length(text), 0);
}

__attribute__((noreturn)) static void leave(const char *what, const char *about)
{
    say("dislock: ");
    say(what);
    say(about);
    say("\n");
    for (;;)
        call(SYS_exit, 1, 0, 0, 0);
}

static char *join(char *into, const char *folder, const char *name)
{
    char *end = into;
    if (length(folder) + length(name) + 1 > ROOM)
        leave("this path is too long: ", folder);
    while (*folder)
        *end++ = *folder++;
    while (*name)
        *end++ = *name++;
    *end = 0;
    return into;
}

static void parent(char *path)
{
    char *end = path + length(path);
    while (end > path && *end != '/')
        end--;
    *end = 0;
}

/* /proc/self/exe follows symbolic links, so a link to the launcher works in any folder. Without /proc, the path that
 * was executed is used. */
static void find_folder(char *folder, word *auxiliary)
{
    const char *executed = "";
    long got = call(SYS_readlinkat, -100 /* AT_FDCWD */, (long)"/proc/self/exe", (long)folder, ROOM - 1);
    if (got > 0) {
        folder[got] = 0;
    } else {
        for (; auxiliary[0]; auxiliary += 2)
            if (auxiliary[0] == 31 /* AT_EXECFN */)
                executed = (const char *)auxiliary[1];
        join(folder, *executed == '/' ? "" : "./", executed);
    }
    parent(folder);
#ifdef PYTHON
    parent(folder);
#endif
    for (char *c = folder; *c; c++)
        if (*c == ':' || *c == ';' || *c == '$')
            leave("the loader cannot take a folder whose path contains ':', ';' or '$': ", folder);
}

#ifndef PYTHON
static int begins(const char *text, const char *with)
{
    while (*with)
        if (*text++ != *with++)
            return 0;
    return 1;
}

/* Libraries that are preloaded for the command are built for the command's C library, not for this one. So these
 * variables are renamed in place, for the loader; start.py restores them for the command. */
static void hide(char **environment)
{
    for (; *environment; environment++)
        if (begins(*environment, "LD_PRELOAD=") || begins(*environment, "LD_AUDIT="))
            **environment = 1;
}
#endif

__attribute__((used, noreturn)) void start(word *stack)
{
    static char folder[ROOM], loader[ROOM], libraries[ROOM], program[ROOM], own_name[ROOM];
    word count = stack[0];
    char *arguments[count + 10]; /* The kernel allows arguments up to a quarter of the stack, so there is room for a copy. */
    char **given = (char **)(stack + 1);
    char **environment = given + count + 1;
    char **rest = environment;
    char **next = arguments;
#ifndef PYTHON
    static char script[ROOM];
#endif

    while (*rest)
        rest++;
    find_folder(folder, (word *)(rest + 1));
    *next++ = join(loader, folder, "/lib/" LOADER);
    *next++ = "--inhibit-cache";
    *next++ = "--library-path";
    *next++ = join(libraries, folder, "/lib");
    *next++ = "--argv0";
    *next++ = join(own_name, folder, "/bin/python3");
    *next++ = join(program, folder, "/lib/cpython");
#ifndef PYTHON
    hide(environment);
    *next++ = "-IS";
    *next++ = join(script, folder, "/lib/start.pyc");
#endif
    for (word i = 1; i < count; i++)
        *next++ = given[i];
    *next = 0;
    call(SYS_execve, (long)loader, (long)arguments, (long)environment, 0);
    leave("cannot be started, because this file is missing or not executable here: ", loader);
}
