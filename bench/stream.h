/* A connection of a sink: plain TCP, or TLS that is decrypted in the sink's own process.
 *
 * `stream_server` is called once, before the first connection. Without it all connections are plain.
 */
#ifndef BENCH_STREAM_H
#define BENCH_STREAM_H
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include "libssl.h"

enum { STREAM_AHEAD = 128 * 1024 };

typedef struct {
    int fd;
    int more;               /* the last read has filled its buffer: poll may not tell of what OpenSSL holds */
    SSL *tls;               /* NULL: plain */
    const char *cipher;     /* its name after the handshake, else empty */
} Stream;

static SSL_CTX *stream_context;

/* Show this certificate (with its key, PEM) from now on. Return 0, or -1 with an error on stderr. */
static inline int stream_server(const char *library, const char *certificate) {
    if (load_ssl(library))
        return -1;
    signal(SIGPIPE, SIG_IGN);   /* OpenSSL writes without MSG_NOSIGNAL */
    stream_context = ssl.SSL_CTX_new(ssl.TLS_server_method());
    if (!stream_context || ssl.SSL_CTX_use_certificate_chain_file(stream_context, certificate) != 1 ||
        ssl.SSL_CTX_use_PrivateKey_file(stream_context, certificate, SSL_FILETYPE_PEM) != 1) {
        print_ssl_error("stream");
        return -1;
    }
    ssl.SSL_CTX_ctrl(stream_context, SSL_CTRL_MODE,
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER, NULL);
    /* One recv for several records. */
    ssl.SSL_CTX_ctrl(stream_context, SSL_CTRL_SET_READ_AHEAD, 1, NULL);
    ssl.SSL_CTX_set_default_read_buffer_len(stream_context, STREAM_AHEAD);
    return 0;
}

static inline Stream stream_open(int fd) {
    Stream made = {.fd = fd, .cipher = ""};
    if (stream_context && (made.tls = ssl.SSL_new(stream_context))) {
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
        ssl.SSL_set_fd(made.tls, fd);
        ssl.SSL_set_accept_state(made.tls);     /* the first reads do the handshake */
    }
    return made;
}

static inline void stream_close(Stream *s) {
    if (s->tls)
        ssl.SSL_free(s->tls);
    close(s->fd);
}

/* Read what has arrived. Return its size; 0: the peer has ended; -1: see errno, which is EAGAIN where nothing has
 * arrived, and EPROTO where the peer does not speak TLS. */
static inline ssize_t stream_read(Stream *s, void *buffer, size_t room) {
    if (!s->tls)
        return recv(s->fd, buffer, room, MSG_DONTWAIT);
    size_t have = 0;
    s->more = 0;
    while (have < room) {
        ssl.ERR_clear_error();
        int n = ssl.SSL_read(s->tls, (char *)buffer + have, room - have < 1 << 30 ? (int)(room - have) : 1 << 30);
        if (n > 0) {
            have += n;
            continue;
        }
        int error = ssl.SSL_get_error(s->tls, n);
        if (have && error != SSL_ERROR_WANT_READ)
            s->more = 1;    /* it ends with the next read */
        if (have)
            break;
        if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
            errno = EAGAIN;
            return -1;
        }
        if (error == SSL_ERROR_SSL && !*s->cipher) {
            print_ssl_error("stream");
            errno = EPROTO;
            return -1;
        }
        return 0;
    }
    if (have == room)
        s->more = 1;
    if (have && !*s->cipher)
        s->cipher = ssl.SSL_CIPHER_get_name(ssl.SSL_get_current_cipher(s->tls));
    return have;
}

/* Write everything, and wait for room. Return 0; -1: the peer has closed the connection. */
static inline int stream_write(Stream *s, const void *data, size_t size) {
    for (size_t done = 0; done < size;) {
        const char *next = (const char *)data + done;
        if (!s->tls) {
            ssize_t n = send(s->fd, next, size - done, MSG_NOSIGNAL);
            if (n < 0 && errno != EINTR)
                return -1;
            done += n > 0 ? n : 0;
            continue;
        }
        ssl.ERR_clear_error();
        int n = ssl.SSL_write(s->tls, next, size - done < 1 << 30 ? (int)(size - done) : 1 << 30);
        if (n > 0) {
            done += n;
            continue;
        }
        int error = ssl.SSL_get_error(s->tls, n);
        if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE)
            return -1;
        struct pollfd polled = {.fd = s->fd, .events = error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT};
        if (poll(&polled, 1, -1) < 0 && errno != EINTR)
            return -1;
    }
    return 0;
}

#endif
