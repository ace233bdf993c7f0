/* Loaded before the C library: what is not written in Python (uvloop, ZeroMQ, gRPC) records, and is refused, every
 * address but loopback. Names are refused where they are looked up, whoever asks. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void record(const char *what, const char *host) {
    FILE *file = fopen(RECORD, "a");
    if (!file) return;
    fprintf(file, "%s %s by %s, process %d\n", what, host, program_invocation_name, (int)getpid());
    fclose(file);
}

static int is_local4(const unsigned char *bytes) { return bytes[0] == 127 || bytes[0] == 0; }

static int is_allowed(const char *what, const struct sockaddr *address) {
    char text[INET6_ADDRSTRLEN];
    if (!address || (address->sa_family != AF_INET && address->sa_family != AF_INET6)) return 1;
    if (address->sa_family == AF_INET) {
        const struct in_addr *ip = &((const struct sockaddr_in *)address)->sin_addr;
        if (is_local4((const unsigned char *)ip)) return 1;
        inet_ntop(AF_INET, ip, text, sizeof text);
    } else {
        const struct in6_addr *ip = &((const struct sockaddr_in6 *)address)->sin6_addr;
        if (IN6_IS_ADDR_LOOPBACK(ip) || IN6_IS_ADDR_UNSPECIFIED(ip)) return 1;
        if (IN6_IS_ADDR_V4MAPPED(ip) && is_local4(ip->s6_addr + 12)) return 1;
        inet_ntop(AF_INET6, ip, text, sizeof text);
    }
    record(what, text);
    errno = ENETUNREACH;
    return 0;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int connect(int socket, const struct sockaddr *address, socklen_t size) {
    return is_allowed("connect", address) ? REAL(connect)(socket, address, size) : -1;
}

ssize_t sendto(int socket, const void *data, size_t n, int flags, const struct sockaddr *address, socklen_t size) {
    return is_allowed("sendto", address) ? REAL(sendto)(socket, data, n, flags, address, size) : -1;
}

ssize_t sendmsg(int socket, const struct msghdr *message, int flags) {
    return is_allowed("sendmsg", message->msg_name) ? REAL(sendmsg)(socket, message, flags) : -1;
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    struct in6_addr ip;
    char own[256] = "";
    gethostname(own, sizeof own - 1);
    if (!node || !strcmp(node, "localhost") || !strcmp(node, own) || inet_pton(AF_INET, node, &ip) == 1 ||
        inet_pton(AF_INET6, node, &ip) == 1)
        return REAL(getaddrinfo)(node, service, hints, found);
    record("getaddrinfo", node);
    return EAI_FAIL;
}
