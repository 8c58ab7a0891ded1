/* Text of a document: strings quoted for JSON, numbers, a time stamp. Pure functions over bytes; the
 * formatter (record.pyx) makes room and keeps count.
 *
 * Each function writes at `to` and returns where it stopped. It may overwrite LC_SLACK bytes
 * behind that: whole registers are stored. */
#ifndef LOGCLIENT_TEXT_H
#define LOGCLIENT_TEXT_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "bits.h"

#if defined(__SSE2__) && !defined(LC_NO_SIMD)
#include <emmintrin.h>
#define LC_SSE2 1
#endif

enum { LC_SLACK = 32, LC_WORST = 6 };   /* a control character becomes six bytes */

/* The keys of a document with a meaning of their own, as written before a string: ,"key":"
 * Those before KEY_ERROR_TYPE are the fields of a record without an exception, in their order. */
enum {
    KEY_TIMESTAMP, KEY_LEVEL, KEY_MESSAGE, KEY_ECS, KEY_LOGGER, KEY_FILE, KEY_LINE, KEY_FUNCTION, KEY_PID,
    KEY_PROCESS, KEY_THREAD_ID, KEY_THREAD, KEY_ERROR_TYPE, KEY_ERROR_MESSAGE, KEY_STACK_TRACE, KEY_FINGERPRINT,
    KEY_FLAGS, KEY_METADATA, KEY_EVENT_ID, KEY_EVENTS, KEYS
};
typedef struct {
    char text[31];
    uint8_t n;       /* bytes of the name, which begins at text + 2 */
} lc_key;
#define LC_KEY(name) {",\"" name "\":\"", sizeof(name) - 1}
static const lc_key lc_keys[KEYS] = {
    LC_KEY("@timestamp"), LC_KEY("log.level"), LC_KEY("message"), LC_KEY("ecs.version"), LC_KEY("log.logger"),
    LC_KEY("log.origin.file.name"), LC_KEY("log.origin.file.line"), LC_KEY("log.origin.function"),
    LC_KEY("process.pid"), LC_KEY("process.name"), LC_KEY("process.thread.id"), LC_KEY("process.thread.name"),
    LC_KEY("error.type"), LC_KEY("error.message"), LC_KEY("error.stack_trace"), LC_KEY("error.fingerprint"),
    LC_KEY("log.flags"),
    LC_KEY("@metadata"), LC_KEY("event.id"), LC_KEY("event"),
};

/* The same inside an object. */
static const lc_key lc_inner_keys[KEYS] = {
    [KEY_ERROR_TYPE] = LC_KEY("type"), [KEY_ERROR_MESSAGE] = LC_KEY("message"),
    [KEY_STACK_TRACE] = LC_KEY("stack_trace"), [KEY_FINGERPRINT] = LC_KEY("fingerprint"),
};

/* The meaning of the name of a user's field: one of KEY_..., or: */
enum {
    NAME_OBJECT = KEYS,      /* an object of ECS */
    NAME_FILLED,             /* ... into which records write */
    NAME_LABELS,             /* ... `labels` */
    NAME_PLAIN,              /* nothing */
    NAME_CARRIER,            /* the field that carries the id, in a protocol that has one */
    NAME_BELOW,              /* a field of an object of ECS: <object>.<name> */
    NAME_BELOW_FILLED,       /* ... into which records write */
    NAME_BELOW_LABELS,       /* ... labels.<...> */
    NAME_BELOW_ID,           /* a field below one that carries the id: `event.id.x`, `@metadata.x` */
    NAME_BELOW_OURS,         /* a field below one that a record writes: `message.x`, `log.origin.x` */
    NAME_DOTTED              /* any other with a dot */
};
typedef struct {
    const char *text;
    uint8_t n;
    uint8_t what;
} lc_name;
#define LC_NAME(name, what) {name, sizeof(name) - 1, what}
#define LC_OBJECT(name) LC_NAME(name, NAME_OBJECT)
/* The top-level objects of ECS, beside `event`, and then our own keys; the shortest first. */
static const lc_name lc_names[] = {
    LC_OBJECT("dll"), LC_OBJECT("dns"), LC_NAME("ecs", NAME_FILLED), LC_NAME("log", NAME_FILLED),
    LC_OBJECT("tls"), LC_OBJECT("url"), LC_OBJECT("faas"), LC_OBJECT("file"), LC_OBJECT("host"),
    LC_OBJECT("http"), LC_OBJECT("rule"), LC_OBJECT("span"), LC_OBJECT("user"), LC_OBJECT("agent"),
    LC_OBJECT("cloud"), LC_OBJECT("email"), LC_NAME("error", NAME_FILLED), LC_NAME("event", KEY_EVENTS),
    LC_OBJECT("group"), LC_OBJECT("trace"), LC_OBJECT("client"), LC_OBJECT("device"),
    LC_NAME("labels", NAME_LABELS), LC_OBJECT("server"), LC_OBJECT("source"), LC_OBJECT("threat"),
    LC_OBJECT("volume"), LC_NAME("message", KEY_MESSAGE), LC_OBJECT("network"), LC_OBJECT("package"),
    LC_NAME("process", NAME_FILLED), LC_OBJECT("related"), LC_OBJECT("service"),
    LC_NAME("event.id", KEY_EVENT_ID), LC_OBJECT("observer"), LC_OBJECT("registry"),
    LC_NAME("@metadata", KEY_METADATA), LC_OBJECT("container"), LC_NAME("log.flags", KEY_FLAGS),
    LC_NAME("log.level", KEY_LEVEL), LC_NAME("@timestamp", KEY_TIMESTAMP),
    LC_NAME("error.type", KEY_ERROR_TYPE), LC_NAME("log.logger", KEY_LOGGER), LC_OBJECT("user_agent"),
    LC_OBJECT("data_stream"), LC_OBJECT("destination"), LC_NAME("ecs.version", KEY_ECS),
    LC_NAME("process.pid", KEY_PID), LC_OBJECT("transaction"), LC_OBJECT("orchestrator"),
    LC_OBJECT("organization"), LC_NAME("process.name", KEY_PROCESS),
    LC_NAME("error.message", KEY_ERROR_MESSAGE), LC_OBJECT("vulnerability"),
    LC_NAME("process.thread.id", KEY_THREAD_ID), LC_NAME("error.stack_trace", KEY_STACK_TRACE),
    LC_NAME("error.fingerprint", KEY_FINGERPRINT), LC_NAME("log.origin.function", KEY_FUNCTION),
    LC_NAME("process.thread.name", KEY_THREAD), LC_NAME("log.origin.file.name", KEY_FILE),
    LC_NAME("log.origin.file.line", KEY_LINE),
};
enum { LC_NAMES = sizeof(lc_names) / sizeof(lc_names[0]), LC_LONGEST = 20 };

/* The meaning of a name of `n` ASCII characters; NAME_PLAIN: none. */
static inline int lc_what(const void *text, size_t n) {
    /* where the names of each length begin */
    static const uint8_t at[LC_LONGEST + 2] = {
        0, 0, 0, 0, 6, 13, 20, 27, 33, 36, 40, 44, 49, 52, 54, 54, 54, 54, 57, 57, 59, 61};
    int i;
    if (n > LC_LONGEST)
        return NAME_PLAIN;
    for (i = at[n]; i < at[n + 1]; i++)
        if (lc_names[i].text[0] == *(const char *)text && memcmp(lc_names[i].text, text, n) == 0)
            return lc_names[i].what;
    return NAME_PLAIN;
}

/* The state of a thread: whether it is a sender (whose own records are never shipped), and parts of its last
 * document, each with the values that it was made from. Bytes and numbers only, compared before use. */
typedef struct {
    int own;
    int calls;               /* log calls and other encodings that are running, each within the one before */
    int refuses;             /* further calls within them: a limit was reached */
    uintptr_t floor;         /* such a call needs the stack above this address; 0: not looked at yet */
    int64_t minute;          /* since 1970, plus LC_EPOCH; 0: none yet */
    char stamp[24];          /* 2026-01-01T12:34: */
    int64_t pid, thread;
    uint32_t size;           /* of text; 0: none yet */
    uint8_t process_n, thread_n;
    char process_name[32], thread_name[32];
    int nested;              /* text is an object */
    uint8_t starts[4];       /* else: the offsets of their values */
    char text[256];          /* the four process.* fields */
} lc_here;

/* 0: stands for itself; 'u': \u00XX; 1: not ASCII; else the letter behind the backslash. */
static const uint8_t lc_escape[256] = {
    'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'b', 't', 'n', 'u', 'f', 'r', 'u', 'u',
    'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u',
    ['"'] = '"', ['\\'] = '\\', [128 ... 255] = 1,
};

static const char lc_pairs[201] =
    "00010203040506070809101112131415161718192021222324252627282930313233343536373839404142434445464748"
    "49505152535455565758596061626364656667686970717273747576777879808182838485868788899091929394959697"
    "9899";

static inline uint8_t *lc_put_escape(uint8_t *to, uint8_t c) {
    static const char hex[] = "0123456789abcdef";
    uint8_t letter = lc_escape[c];
    *to++ = '\\';
    *to++ = letter;
    if (letter == 'u') {
        to[0] = '0';
        to[1] = '0';
        to[2] = (uint8_t)hex[c >> 4];
        to[3] = (uint8_t)hex[c & 15];
        to += 4;
    }
    return to;
}

/* One code point as UTF-8; a surrogate has none, it becomes U+FFFD and *bad is set. */
static inline uint8_t *lc_put_wide(uint8_t *to, uint32_t c, int *bad) {
    if (c < 0x800) {
        to[0] = (uint8_t)(0xC0 | (c >> 6));
        to[1] = (uint8_t)(0x80 | (c & 0x3F));
        return to + 2;
    }
    if ((c & 0xFFFFF800u) == 0xD800) {
        c = 0xFFFD;
        *bad = 1;
    }
    if (c < 0x10000) {
        to[0] = (uint8_t)(0xE0 | (c >> 12));
        to[1] = (uint8_t)(0x80 | ((c >> 6) & 0x3F));
        to[2] = (uint8_t)(0x80 | (c & 0x3F));
        return to + 3;
    }
    to[0] = (uint8_t)(0xF0 | (c >> 18));
    to[1] = (uint8_t)(0x80 | ((c >> 12) & 0x3F));
    to[2] = (uint8_t)(0x80 | ((c >> 6) & 0x3F));
    to[3] = (uint8_t)(0x80 | (c & 0x3F));
    return to + 4;
}

/* Sets the high bit of each byte of v that is >= 0x80, < ' ', a quote or a backslash; a borrow may set
 * more of them above such a byte, never without one. */
static inline uint64_t lc_odd8(uint64_t v) {
    const uint64_t ones = UINT64_MAX / 255;
    return v | (v - ones * 0x20) | ((v ^ (ones * '"')) - ones) | ((v ^ (ones * '\\')) - ones);
}

#ifdef LC_SSE2
/* All bits set where a character does not stand for itself. The comparison is signed: control characters and
 * everything beyond ASCII are < ' '. */
static inline __m128i lc_odd16(__m128i v) {
    return _mm_or_si128(
        _mm_cmplt_epi8(v, _mm_set1_epi8(' ')),
        _mm_or_si128(_mm_cmpeq_epi8(v, _mm_set1_epi8('"')), _mm_cmpeq_epi8(v, _mm_set1_epi8('\\'))));
}
#endif

/* Copy 4 to 16 characters that stand for themselves, without a loop; NULL: some do not. */
static inline uint8_t *lc_copy_short(uint8_t *to, const uint8_t *from, size_t n) {
    if (n >= 8) {
        uint64_t v, w;
        memcpy(&v, from, 8);
        memcpy(&w, from + n - 8, 8);
#ifdef LC_SSE2
        if (_mm_movemask_epi8(lc_odd16(_mm_set_epi64x((int64_t)w, (int64_t)v))))
#else
        if ((lc_odd8(v) | lc_odd8(w)) & (UINT64_MAX / 255 * 0x80))
#endif
            return NULL;
        memcpy(to, &v, 8);
        memcpy(to + n - 8, &w, 8);
    } else {
        uint32_t v, w;
        memcpy(&v, from, 4);
        memcpy(&w, from + n - 4, 4);
        if (lc_odd8(v | (uint64_t)w << 32) & (UINT64_MAX / 255 * 0x80))
            return NULL;
        memcpy(to, &v, 4);
        memcpy(to + n - 4, &w, 4);
    }
    return to + n;
}

/* One-byte strings (ASCII or Latin-1), quoted. Clean runs are copied a register at a time: loaded,
 * stored, and only then looked at. */
static inline uint8_t *lc_quote1(uint8_t *to, const uint8_t *from, size_t n) {
    const uint8_t *end = from + n;
    uint8_t c;
    int bad = 0;
    for (;;) {
#ifdef LC_SSE2
        const uint8_t *run = from;
        while (end - from >= 32) {
            __m128i v = _mm_loadu_si128((const __m128i *)from), w = _mm_loadu_si128((const __m128i *)(from + 16));
            if (_mm_movemask_epi8(_mm_or_si128(lc_odd16(v), lc_odd16(w))))
                break;
            _mm_storeu_si128((__m128i *)to, v);
            _mm_storeu_si128((__m128i *)(to + 16), w);
            from += 32;
            to += 32;
        }
        while (end - from >= 16) {
            __m128i v = _mm_loadu_si128((const __m128i *)from);
            unsigned mask = (unsigned)_mm_movemask_epi8(lc_odd16(v));
            _mm_storeu_si128((__m128i *)to, v);
            if (mask) {
                unsigned i = lc_ctz32(mask);
                from += i;
                to += i;
                goto odd_one;
            }
            from += 16;
            to += 16;
        }
        if (end - run >= 16) {               /* the rest, with the last ones that are copied already */
            __m128i v = _mm_loadu_si128((const __m128i *)(end - 16));
            if (!_mm_movemask_epi8(lc_odd16(v))) {
                to += end - from;
                _mm_storeu_si128((__m128i *)(to - 16), v);
                return to;
            }
        }
#else
        while (end - from >= 16 && lc_copy_short(to, from, 16)) {
            from += 16;
            to += 16;
        }
#endif
        if (end - from >= 4 && end - from < 16) {
            uint8_t *done = lc_copy_short(to, from, (size_t)(end - from));
            if (done)
                return done;
        }
        for (;;) {
            if (from == end)
                return to;
            c = *from;
            if (lc_escape[c])
                break;
            *to++ = c;
            from++;
        }
#ifdef LC_SSE2
    odd_one:
#endif
        c = *from++;
        to = c < 0x80 ? lc_put_escape(to, c) : lc_put_wide(to, c, &bad);
    }
}

/* The same, quick for short strings. */
static inline uint8_t *lc_quote_short(uint8_t *to, const uint8_t *from, size_t n) {
    uint8_t *done = n >= 4 && n <= 16 ? lc_copy_short(to, from, n) : NULL;
    return done ? done : lc_quote1(to, from, n);
}

/* One of these keys and an ASCII string. */
static inline uint8_t *lc_field(uint8_t *to, int key, const void *from, size_t n) {
    memcpy(to, lc_keys[key].text, 32);
    to = lc_quote_short(to + lc_keys[key].n + 5, (const uint8_t *)from, n);
    *to = '"';
    return to + 1;
}

/* These bytes up to the quote that opens a string, and an ASCII string. */
static inline uint8_t *lc_text_behind(uint8_t *to, const char *key, size_t size, const void *from, size_t n) {
    memcpy(to, key, size);
    to = lc_quote_short(to + size, (const uint8_t *)from, n);
    *to = '"';
    return to + 1;
}

__attribute__((always_inline))
static inline uint8_t *lc_each(uint8_t *to, const void *from, int kind, size_t n, int quoted, int *bad) {
    size_t i;
    for (i = 0; i < n; i++) {
        uint32_t c = kind == 1   ? ((const uint8_t *)from)[i]
                     : kind == 2 ? ((const uint16_t *)from)[i]
                                 : ((const uint32_t *)from)[i];
        if (c >= 0x80)
            to = lc_put_wide(to, c, bad);
        else if (quoted && lc_escape[c])
            to = lc_put_escape(to, (uint8_t)c);
        else
            *to++ = (uint8_t)c;
    }
    return to;
}

/* Characters of `kind` bytes each, quoted or, for the values of a pair block, as they are. */
static inline uint8_t *lc_characters(uint8_t *to, const void *from, int kind, size_t n, int quoted, int *bad) {
    if (kind == 1)
        return lc_each(to, from, 1, n, quoted, bad);
    return kind == 2 ? lc_each(to, from, 2, n, quoted, bad) : lc_each(to, from, 4, n, quoted, bad);
}

static inline uint8_t *lc_uint(uint8_t *to, uint64_t v) {
    static const uint64_t tens[] = {
        0, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000, 1000000000, 10000000000, 100000000000,
        1000000000000, 10000000000000, 100000000000000, 1000000000000000, 10000000000000000,
        100000000000000000, 1000000000000000000, 10000000000000000000u};
    uint8_t *end, *p;
    size_t n;
    if (v < 10) {
        *to = (uint8_t)('0' + v);
        return to + 1;
    }
    n = lc_width64(v) * 1233 >> 12;     /* 1233 / 4096 is a little more than log10(2) */
    p = end = to + n + (v >= tens[n]);
    while (v >= 100) {
        p -= 2;
        memcpy(p, lc_pairs + 2 * (v % 100), 2);
        v /= 100;
    }
    if (v >= 10)
        memcpy(to, lc_pairs + 2 * v, 2);
    else
        *to = (uint8_t)('0' + v);
    return end;
}

static inline uint8_t *lc_int(uint8_t *to, int64_t v) {
    if (v >= 0)
        return lc_uint(to, (uint64_t)v);
    *to++ = '-';
    return lc_uint(to, 0 - (uint64_t)v);
}

/* The shortest decimal that reads back as v, as repr() writes it; NULL: not one of the easy ones.
 *
 * A decimal t / 10^k of at most 15 digits that reads back as v is the only one with so few digits: without
 * the zeros at its end it is the shortest. The division is exact arithmetic rounded once: it is the
 * reading back. */
static inline uint8_t *lc_float(uint8_t *to, double v) {
    static const int places[] = {0, 3, 6, 8};
    static const double powers[] = {1.0, 1e3, 1e6, 1e8};
    static const uint64_t whole[] = {1, 1000, 1000000, 100000000};
    double a = fabs(v);
    int i;
    if (!(a < 1e15) || (a < 1e-4 && a != 0.0))
        return NULL;
    for (i = 0; i < 4; i++) {
        double t = a * powers[i] + 0.5;
        if (t >= 1e15)
            return NULL;
        t = (double)(int64_t)t;      /* a call of floor() costs more */
        if (t / powers[i] == a) {
            /* The quotient is at least 1 / 10^k below the next integer, so rounding does not reach it. */
            uint64_t units = (uint64_t)a, part = (uint64_t)t - units * whole[i];
            int k = places[i];
            for (; k > 1 && part % 10 == 0; k--)
                part /= 10;
            if (signbit(v))
                *to++ = '-';
            to = lc_uint(to, units);
            *to++ = '.';
            for (i = k; i > 1; i--) {
                to[i - 1] = (uint8_t)('0' + part % 10);
                part /= 10;
            }
            to[0] = (uint8_t)('0' + part);
            return to + (k > 1 ? k : 1);
        }
    }
    return NULL;
}

/* 2026-01-01T12:34: from minutes since 1970; the years 1 to 9999. 17 bytes. */
static inline void lc_minute(char *to, int64_t minutes) {
    int64_t days = minutes / 1440;
    uint32_t left, era, day, year, month;
    minutes -= days * 1440;
    if (minutes < 0) {
        minutes += 1440;
        days--;
    }
    left = (uint32_t)minutes;
    /* Years are counted from 1 March 0000, so that the leap day is the last one. */
    days += 719468;
    era = (uint32_t)(days / 146097);
    day = (uint32_t)(days - (int64_t)era * 146097);
    year = (day - day / 1460 + day / 36524 - day / 146096) / 365;
    day -= 365 * year + year / 4 - year / 100;
    month = (5 * day + 2) / 153;
    day -= (153 * month + 2) / 5;
    year += era * 400 + (month >= 10);
    month = month < 10 ? month + 3 : month - 9;
    memcpy(to, lc_pairs + 2 * (year / 100), 2);
    memcpy(to + 2, lc_pairs + 2 * (year % 100), 2);
    to[4] = '-';
    memcpy(to + 5, lc_pairs + 2 * month, 2);
    to[7] = '-';
    memcpy(to + 8, lc_pairs + 2 * (day + 1), 2);
    to[10] = 'T';
    memcpy(to + 11, lc_pairs + 2 * (left / 60), 2);
    to[13] = ':';
    memcpy(to + 14, lc_pairs + 2 * (left % 60), 2);
    to[16] = ':';
}

/* The six digits of microseconds. */
static inline uint8_t *lc_micro(uint8_t *to, uint32_t us) {
    memcpy(to, lc_pairs + 2 * (us / 10000), 2);
    memcpy(to + 2, lc_pairs + 2 * (us / 100 % 100), 2);
    memcpy(to + 4, lc_pairs + 2 * (us % 100), 2);
    return to + 6;
}

/* More minutes than any time before 1970 has. */
#define LC_EPOCH (INT64_C(1) << 40)

/* 2026-01-01T12:34:56.789012Z from microseconds since 1970. 27 bytes. */
static inline uint8_t *lc_time(uint8_t *to, int64_t us, lc_here *last) {
    int64_t minute = us / 60000000;
    uint32_t rest, second;
    us -= minute * 60000000;
    if (us < 0) {
        us += 60000000;
        minute--;
    }
    if (last->minute != minute + LC_EPOCH) {
        lc_minute(last->stamp, minute);
        last->minute = minute + LC_EPOCH;
    }
    memcpy(to, last->stamp, 24);
    rest = (uint32_t)us;
    second = rest / 1000000;
    rest -= second * 1000000;
    memcpy(to + 17, lc_pairs + 2 * second, 2);
    to[19] = '.';
    to = lc_micro(to + 20, rest);
    *to = 'Z';
    return to + 1;
}

/* Whether 8 characters of ASCII are like `zeros`, or larger digits in their place, up to those of `nines`; and
 * whether the numbers of two digits that begin at each of them are from `least` to `most`. A byte each. */
static inline int lc_is_in_range(const uint8_t *p, const char *zeros, const char *nines, uint64_t least,
                                 uint64_t most) {
    const uint64_t top = 0x8080808080808080u, shape = lc_le64((const uint8_t *)zeros);
    uint64_t digits = lc_le64(p) ^ shape, limit = lc_le64((const uint8_t *)nines) ^ shape;
    uint64_t numbers = digits * 10 + (digits >> 8);
    if ((((limit | top) - digits) & top) != top) return 0;
    return ((((numbers | top) - least) & ((most | top) - numbers)) & top) == top;
}

/* Whether `n` characters of ASCII are a time of RFC 3339 as most are: 2026-01-01T12:34:56Z or with a fraction, in
 * UTC, and of a day that every month has. The bounds, from the lowest byte: century (byte 0) and month (5); day (0),
 * hour (3) and minute (6); second (6). */
static inline int lc_is_plain_time(const uint8_t *p, size_t n) {
    if (n < 20 || n > 30 || n == 21 || p[n - 1] != 'Z' || (n > 20 && p[19] != '.')
        || !lc_is_in_range(p, "0000-00-", "9999-99-", 0x0000010000000013u, 0x7f7f0c7f7f7f7f7fu)
        || !lc_is_in_range(p + 8, "00T00:00", "99T99:99", 0x0000000000000001u, 0x7f3b7f7f177f7f1cu)
        || !lc_is_in_range(p + 11, "00:00:00", "99:99:99", 0, 0x7f3b7f7f7f7f7f7fu))
        return 0;
    for (n -= 2; n > 19; n--)
        if (p[n] < '0' || p[n] > '9') return 0;
    return 1;
}

static inline int lc_two(const uint8_t *p) {
    return p[0] >= '0' && p[0] <= '9' && p[1] >= '0' && p[1] <= '9' ? (p[0] - '0') * 10 + p[1] - '0' : -1;
}

/* Microseconds since 1970 of a time of RFC 3339 in the years 1 to 9999, without further digits; 0: it is none. */
static inline int lc_read_time(const uint8_t *p, size_t n, int64_t *us) {
    int century, year, month, day, hour, minute, second, ahead = 0, digits = 0;
    int64_t made, part = 0;
    const uint8_t *end = p + n;
    if (n < 20 || p[4] != '-' || p[7] != '-' || p[10] != 'T' || p[13] != ':' || p[16] != ':')
        return 0;
    century = lc_two(p), year = lc_two(p + 2), month = lc_two(p + 5), day = lc_two(p + 8);
    hour = lc_two(p + 11), minute = lc_two(p + 14), second = lc_two(p + 17);
    if ((century | year | month | day | hour | minute | second) < 0 || month < 1 || month > 12)
        return 0;
    p += 19;
    if (*p == '.')
        for (p++; p < end && *p >= '0' && *p <= '9'; p++)
            if (digits++ < 6)
                part = part * 10 + *p - '0';
    for (; digits < 6; digits++)
        part *= 10;
    if (end - p == 6 && (*p == '+' || *p == '-')) {
        if (lc_two(p + 1) < 0 || p[3] != ':' || lc_two(p + 4) < 0)
            return 0;
        ahead = (lc_two(p + 1) * 60 + lc_two(p + 4)) * (*p == '+' ? 1 : -1);
    } else if (end - p != 1 || *p != 'Z')
        return 0;
    year += 100 * century - (month <= 2);      /* it begins in March, so that a leap day is its last */
    month += month > 2 ? -3 : 9;
    made = year * 365LL + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 719469;
    made = ((made * 24 + hour) * 60 + minute - ahead) * 60 + second;
    *us = made * 1000000 + part;
    return made >= -62135596800 && made < 253402300800;
}

#endif
