/* A preloaded look-up of host names that tests can change. NEMESIS_HOSTS is a file of lines "NAME ADDRESS",
 * which is read at each look-up. The address "gone" means an unknown name, "again" a name server that does not
 * answer, and "slow ADDRESS" an answer after a second. Like a real look-up it needs a descriptor. All other
 * names go to the C library. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*look_up)(const char *, const char *, const struct addrinfo *, struct addrinfo **);

int getaddrinfo(const char *restrict name, const char *restrict service,
                const struct addrinfo *restrict hints, struct addrinfo **restrict found) {
    look_up real = (look_up)dlsym(RTLD_NEXT, "getaddrinfo");
    const char *path = getenv("NEMESIS_HOSTS");
    char text[4096], *rest = NULL;
    ssize_t size;
    int file;
    if (!name || !path || !strstr(name, ".nemesis")) return real(name, service, hints, found);
    file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return EAI_SYSTEM;
    size = read(file, text, sizeof text - 1);
    close(file);
    text[size > 0 ? size : 0] = 0;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char known[256], address[256], second[256] = "";
        if (sscanf(line, "%255s %255s %255s", known, address, second) < 2 || strcmp(known, name)) continue;
        if (!strcmp(address, "gone")) return EAI_NONAME;
        if (!strcmp(address, "again")) return EAI_AGAIN;
        if (!strcmp(address, "slow")) sleep(1);
        return real(*second ? second : address, service, hints, found);
    }
    return EAI_NONAME;
}
