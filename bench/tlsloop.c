/* The lower bound of TLS: a loop in C that writes windows which lie ready by SSL_write, and the cipher alone. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libssl.h"

enum { ACK = 6, RECORD = 16 * 1024, TAG = 16 };

static double spent(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int load(const char *path) { return load_ssl(path); }

/* Do the handshake over a blocking socket with this cipher only; NULL with an error on stderr. */
void *open_tls(int fd, const char *ca, const char *cipher) {
    SSL_CTX *context = ssl.SSL_CTX_new(ssl.TLS_client_method());
    SSL *made = NULL;
    if (!context)
        return NULL;
    ssl.SSL_CTX_ctrl(context, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_2_VERSION, NULL);
    ssl.SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    ssl.ERR_clear_error();
    if (ssl.SSL_CTX_load_verify_locations(context, ca, NULL) == 1 &&
        (strncmp(cipher, "TLS_", 4) ? ssl.SSL_CTX_set_cipher_list(context, cipher)
                                    : ssl.SSL_CTX_set_ciphersuites(context, cipher)) == 1 &&
        (made = ssl.SSL_new(context)) && ssl.SSL_set_fd(made, fd) == 1 && ssl.SSL_connect(made) == 1) {
        ssl.SSL_CTX_free(context);
        return made;
    }
    print_ssl_error("tlsloop");
    if (made)
        ssl.SSL_free(made);
    ssl.SSL_CTX_free(context);
    return NULL;
}

void close_tls(void *connection) {
    ssl.SSL_shutdown(connection);
    ssl.SSL_free(connection);
}

/* Send the window `windows` times, at most `inflight` without an ack; return the number of acks. `cpu`: this thread's
 * seconds in SSL_write. */
long run(void *connection, const uint8_t *window, size_t size, long windows, long inflight, double *cpu) {
    uint8_t acks[4096];
    long got = 0, sent = 0;     /* bytes of acks, windows */
    *cpu = 0;
    while (got < windows * ACK) {
        if (sent < windows && sent - got / ACK < inflight) {
            double start = spent(CLOCK_THREAD_CPUTIME_ID);
            ssl.ERR_clear_error();
            for (size_t done = 0; done < size;) {
                int n = ssl.SSL_write(connection, window + done, size - done);
                if (n <= 0)
                    return got / ACK;
                done += n;
            }
            *cpu += spent(CLOCK_THREAD_CPUTIME_ID) - start;
            sent++;
            continue;
        }
        ssl.ERR_clear_error();
        int n = ssl.SSL_read(connection, acks, sizeof acks);
        if (n <= 0)
            return got / ACK;
        got += n;
    }
    return got / ACK;
}

/* Return the bytes per second of CPU that this cipher ("aes-256-gcm") encrypts in records of 16 KiB; 0: it is unknown. */
double seal(const char *name, double seconds) {
    const EVP_CIPHER *cipher = ssl.EVP_get_cipherbyname(name);
    EVP_CIPHER_CTX *context = ssl.EVP_CIPHER_CTX_new();
    uint8_t key[32] = {1}, nonce[12] = {2}, tag[TAG], head[5] = {23, 3, 3};
    uint8_t *in = calloc(1, RECORD), *out = malloc(RECORD + 64);
    double start = spent(CLOCK_THREAD_CPUTIME_ID), now = start;
    uint64_t records = 0;
    int n;
    if (!cipher || !context || !in || !out || !ssl.EVP_EncryptInit_ex(context, cipher, NULL, key, nonce))
        seconds = 0;
    while (now - start < seconds) {
        for (int i = 0; i < 256; i++, records++) {
            memcpy(nonce, &records, sizeof records);
            if (!ssl.EVP_EncryptInit_ex(context, NULL, NULL, NULL, nonce) ||
                !ssl.EVP_EncryptUpdate(context, NULL, &n, head, sizeof head) ||
                !ssl.EVP_EncryptUpdate(context, out, &n, in, RECORD) ||
                !ssl.EVP_EncryptFinal_ex(context, out + n, &n) ||
                !ssl.EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_GET_TAG, TAG, tag))
                seconds = 0;
        }
        now = spent(CLOCK_THREAD_CPUTIME_ID);
    }
    if (context)
        ssl.EVP_CIPHER_CTX_free(context);
    free(in);
    free(out);
    return seconds > 0 ? records * (double)RECORD / (now - start) : 0;
}
