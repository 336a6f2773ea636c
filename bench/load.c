// The load client: closed loop, HTTP/1.1, chat completions, one thread, epoll, loopback only.
//   load -u 127.0.0.1:8080 -c 16 -t 2                               16 connections ask for answers for 2 s
//   load -u ... -c 64 -S -k 2 -r 640 -b bench:n=128,i=20            64 x 2 streams, starts spread over 640 ms
//   load -u ... -c 16 -S -t 1 -b bench:n=128,i=0                    streams one after the other for 1 s
// Every answer is checked: status, end, order of the events, and the stub's checksum over the bytes before it.
// One JSON object on stdout, times in microseconds. ttft = request sent -> first event read; lag = the stub's stamp on an
// event -> read here (one clock); gap = between two events of a stream.
#define _GNU_SOURCE
#include "common.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { VARIANTS = 64 };  // so that no gateway sees one prompt only
enum state { IDLE, HEAD, BODY };
enum framing { LENGTH, CHUNKED, TO_CLOSE };
enum chunk { SIZE, DATA, AFTER, TRAILER };

typedef struct { float *at; size_t len, cap; } series;
typedef struct {
    int fd, status, close, runs, stamps, disorder, line_len, head_len, tail_len, summed, altered;
    enum state state;
    enum framing framing;
    enum chunk chunk;
    long left, trailer_len;
    int64_t sent_at, last_at;
    uint64_t sum;
    char head[16384], line[65536], tail[1024];  // tail = what came after the checksum
} slot;

static int poller, streaming, conc = 1, runs, ramp_ms, expected, active;
static double seconds = 2;
static const char *prompt = "bench:n=128,i=20", *model = "stub-model";
static char headers[4096], error_text[400], *requests[VARIANTS];
static int sizes[VARIANTS];
static unsigned long next_request;
static struct sockaddr_in target;
static int64_t until;
static series latency, ttft, lag, gap;
static long ok, errors, reconnects, events, no_end, cut_short, disorder, altered, bytes_in;

static void note(series *s, int64_t ns) {
    if (s->len == s->cap) s->at = realloc(s->at, (s->cap = s->cap ? s->cap * 2 : 4096) * sizeof *s->at);
    s->at[s->len++] = ns / 1e3;
}
static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void dial(slot *s) {
    int on = 1;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = s};
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(s->fd, (void *)&target, sizeof target) < 0 && errno != EINPROGRESS) {
        perror("load: connect");
        exit(2);
    }
    epoll_ctl(poller, EPOLL_CTL_ADD, s->fd, &event);
}
static void hang_up(slot *s) {
    close(s->fd);
    s->fd = -1;
}
static void ask(slot *s) {
    int which = next_request++ % VARIANTS, sent = 0, waits = 0, dials = 0;
    if (s->fd < 0) {
        dial(s);
        reconnects++;
    }
    s->sent_at = now_ns();
    while (sent < sizes[which]) {
        ssize_t got = send(s->fd, requests[which] + sent, sizes[which] - sent, MSG_NOSIGNAL);
        if (got >= 0) sent += got;
        else if (errno == EAGAIN || errno == ENOTCONN) {  // a connect in progress
            usleep(50);
            if (++waits > 100000) exit((fprintf(stderr, "load: cannot send\n"), 3));
        } else {
            hang_up(s);
            dial(s);
            reconnects++;
            sent = 0;
            s->sent_at = now_ns();
            if (++dials > 50) exit((perror("load: send"), 3));
        }
    }
    s->state = HEAD;
    s->head_len = s->line_len = s->tail_len = s->stamps = s->disorder = s->summed = s->altered = 0;
    s->last_at = 0;
    s->sum = SUM_START;
}

static void check_whole_answer(slot *s) {  // the answer lies in `line`
    char *mark = memmem(s->line, s->line_len, "S!", 2);
    if (!mark) {
        s->altered = 1;
        return;
    }
    s->summed = 1;
    int before = mark - s->line, after = s->line_len - before - 2 - SUM_DIGITS;
    s->altered = after != sizeof ANSWER_END - 1 || memcmp(mark + 2 + SUM_DIGITS, ANSWER_END, after) ||
                 strtoull(mark + 2, 0, 16) != sum_bytes(SUM_START, s->line, before);
}
static void finish(slot *s, int whole) {
    int64_t now = now_ns();
    s->state = IDLE;
    if (s->status != 200 || !whole) {
        errors++;
        if (!error_text[0]) snprintf(error_text, sizeof error_text, "%d %.*s", s->status, s->line_len > 300 ? 300 : s->line_len, s->line);
    } else if (streaming) {
        ok++;
        if (!s->tail_len || !memmem(s->tail, s->tail_len, "[DONE]", 6)) no_end++;
        if (expected && s->stamps != expected) cut_short++;
        disorder += s->disorder;
        if (!s->summed || s->altered || s->tail_len != sizeof STREAM_END - 1 || memcmp(s->tail, STREAM_END, s->tail_len)) altered++;
    } else {
        ok++;
        note(&latency, now - s->sent_at);
        s->line[s->line_len] = 0;
        check_whole_answer(s);
        altered += s->altered;
    }
    if (s->close && s->fd >= 0) hang_up(s);
    if (runs ? --s->runs > 0 : now < until) ask(s);
    else active--;
}

static void keep_tail(slot *s, const char *data, int size) {
    int room = (int)sizeof s->tail - s->tail_len;
    if (size > room) size = room;
    memcpy(s->tail + s->tail_len, data, size);
    s->tail_len += size;
}
static void whole_line(slot *s, int64_t at) {  // with its newline, ended by a zero
    int content = s->line_len - 1;
    if (content && s->line[content - 1] == '\r') content--;
    if (s->line_len > 5 && !memcmp(s->line, "data:", 5) && !memmem(s->line, s->line_len, "[DONE]", 6)) {
        if (!s->last_at) note(&ttft, at - s->sent_at);
        else note(&gap, at - s->last_at);
        s->last_at = at;
    }
    const char *stamp = s->summed ? 0 : memmem(s->line, content, "T!", 2), *mark = 0;
    if (stamp) {
        char *rest;
        int64_t sent = strtoll(stamp + 2, &rest, 10);
        int number = *rest == '#' ? strtol(rest + 1, &rest, 10) : -1;
        note(&lag, at - sent);
        events++;
        if (number != s->stamps++) s->disorder++;
        if (!strncmp(rest, " S!", 3)) mark = rest + 1;
    }
    if (s->summed) keep_tail(s, s->line, s->line_len);
    else if (!mark) {
        s->sum = sum_bytes(s->sum, s->line, s->line_len);
        if (memmem(s->line, content, "[DONE]", 6)) keep_tail(s, s->line, s->line_len);
    } else {
        s->summed = 1;
        s->altered = strtoull(mark + 2, 0, 16) != sum_bytes(s->sum, s->line, mark - s->line);
        const char *after = mark + 2 + SUM_DIGITS;
        if (after < s->line + s->line_len) keep_tail(s, after, s->line + s->line_len - after);
    }
}
static void body(slot *s, const char *data, int size, int64_t at) {
    bytes_in += size;
    while (size) {
        const char *eol = streaming && s->status == 200 ? memchr(data, '\n', size) : 0;
        int take = eol ? eol - data + 1 : size, room = (int)sizeof s->line - 1 - s->line_len;
        int kept = take < room ? take : room;
        memcpy(s->line + s->line_len, data, kept);
        s->line_len += kept;
        data += take, size -= take;
        if (!eol) continue;
        s->line[s->line_len] = 0;
        whole_line(s, at);
        s->line_len = 0;
    }
}
static int read_head(slot *s, const char *data, int size) {  // bytes taken
    int room = (int)sizeof s->head - 1 - s->head_len, kept = size < room ? size : room, from = s->head_len > 3 ? s->head_len - 3 : 0;
    memcpy(s->head + s->head_len, data, kept);
    s->head_len += kept;
    char *end = memmem(s->head + from, s->head_len - from, "\r\n\r\n", 4);
    if (!end) {
        if (kept == room) exit((fprintf(stderr, "load: the answer's head is too long\n"), 4));
        return kept;
    }
    int head = end - s->head + 4, taken = kept - (s->head_len - head);
    s->head[head - 1] = 0;
    s->status = atoi(s->head + 9);
    s->head_len = 0;
    if (s->status == 100) return taken;
    char *length = strcasestr(s->head, "\r\ncontent-length:");
    s->close = strcasestr(s->head, "\r\nconnection: close") != 0;
    s->framing = strcasestr(s->head, "\r\ntransfer-encoding: chunked") ? CHUNKED : length ? LENGTH : TO_CLOSE;
    s->left = s->framing == LENGTH ? strtol(length + 17, 0, 10) : 0;
    s->chunk = SIZE;
    s->state = BODY;
    if (s->framing == LENGTH && !s->left) finish(s, 1);
    return taken;
}
static int read_chunked(slot *s, const char *data, int size, int64_t at) {  // bytes taken
    if (s->chunk == DATA) {
        int take = size < s->left ? size : (int)s->left;
        body(s, data, take, at);
        s->left -= take;
        if (!s->left) s->chunk = AFTER;
        return take;
    }
    char c = *data;
    if (s->chunk == SIZE) {
        int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (digit >= 0) s->left = s->left * 16 + digit;
        if (c == '\n') s->chunk = s->left ? DATA : TRAILER, s->trailer_len = 0;
    } else if (s->chunk == AFTER) {
        if (c == '\n') s->chunk = SIZE, s->left = 0;
    } else if (c == '\n') {
        if (!s->trailer_len) finish(s, 1);
        s->trailer_len = 0;
    } else if (c != '\r') s->trailer_len++;
    return 1;
}
static void feed(slot *s, const char *data, int size, int64_t at) {
    while (size > 0 && s->state != IDLE) {
        int taken = size;
        if (s->state == HEAD) taken = read_head(s, data, size);
        else if (s->framing == CHUNKED) taken = read_chunked(s, data, size, at);
        else if (s->framing == TO_CLOSE) body(s, data, size, at);
        else {
            taken = size < s->left ? size : (int)s->left;
            body(s, data, taken, at);
            s->left -= taken;
            if (!s->left) finish(s, 1);
        }
        data += taken, size -= taken;
    }
}
static void readable(slot *s) {
    static char buffer[262144];
    if (s->fd < 0) return;
    ssize_t got = recv(s->fd, buffer, sizeof buffer, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got > 0) {
        feed(s, buffer, got, now_ns());
        return;
    }
    hang_up(s);
    s->close = 0;
    if (s->state == BODY && s->framing == TO_CLOSE) finish(s, 1);
    else if (s->state != IDLE) {
        if (s->state == HEAD) s->status = 0;
        finish(s, 0);
    }
}

static void make_requests(const char *host) {
    static const char *words[] = {"plain", "river", "engine", "deadline", "token", "queue", "joule", "answer", "window", "stone",
                                  "copper", "signal", "market", "garden", "letter", "summer"};
    static char text[16384], all[32768];
    unsigned seed = 12345;
    for (int i = 0; i < VARIANTS; i++) {
        int len = snprintf(text, sizeof text, "{\"model\":\"%s\",\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.", model);
        for (int k = 0; k < 60; k++) {
            seed = seed * 1103515245u + 12345u;
            len += snprintf(text + len, sizeof text - len, " %s", words[seed >> 16 & 15]);
        }
        len += snprintf(text + len, sizeof text - len, "\"},{\"role\":\"user\",\"content\":\"%s\"}],\"max_tokens\":128,\"temperature\":0.7%s}",
                        prompt, streaming ? ",\"stream\":true" : "");
        sizes[i] = snprintf(all, sizeof all,
                            "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nUser-Agent: bench\r\nAccept: */*\r\n"
                            "Content-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s", host, headers, len, text);
        requests[i] = strdup(all);
    }
}
static void say(const char *name, series *s) {
    if (!s->len) return;
    static const struct { const char *name; double q; } ranks[] = {{"p50", .5}, {"p90", .9}, {"p99", .99}, {"max", 1}};
    qsort(s->at, s->len, sizeof *s->at, ascending);
    printf(",\"%s\":{\"n\":%zu", name, s->len);
    for (int i = 0; i < 4; i++) printf(",\"%s\":%.1f", ranks[i].name, s->at[(size_t)(ranks[i].q * (s->len - 1) + .5)]);
    printf("}");
}
static void report(double elapsed) {
    printf("{\"ok\":%ld,\"errors\":%ld,\"unfinished\":%d,\"elapsed_s\":%.4f,\"reconnects\":%ld,\"bytes\":%ld,\"altered\":%ld", ok, errors,
           active, elapsed, reconnects, bytes_in, altered);
    if (streaming) printf(",\"events\":%ld,\"no_end\":%ld,\"cut_short\":%ld,\"disorder\":%ld", events, no_end, cut_short, disorder);
    say("latency_us", &latency);
    say("lag_us", &lag);
    say("gap_us", &gap);
    say("ttft_us", &ttft);
    if (ttft.len) {
        printf(",\"all_ttft_us\":[");
        for (size_t i = 0; i < ttft.len && i < 4096; i++) printf("%s%.1f", i ? "," : "", ttft.at[i]);
        printf("]");
    }
    if (error_text[0]) {
        printf(",\"first_error\":\"");
        for (char *c = error_text; *c; c++)
            if (*c == '"' || *c == '\\') printf("\\%c", *c);
            else if ((unsigned char)*c >= 32 && (unsigned char)*c < 127) putchar(*c);
        printf("\"");
    }
    printf("}\n");
}
static void parse_target(char *host) {
    char *colon = strrchr(host, ':');
    target.sin_family = AF_INET;
    if (colon) *colon = 0, target.sin_port = htons(atoi(colon + 1));
    if (!colon || !inet_aton(host, &target.sin_addr) || ntohl(target.sin_addr.s_addr) >> 24 != 127)
        exit((fprintf(stderr, "load: -u 127.x.x.x:PORT\n"), 2));
}
int main(int argc, char **argv) {
    int option, started = 0;
    double limit = 60;
    char host[128] = "127.0.0.1:9101", address[128];
    signal(SIGPIPE, SIG_IGN);
    while ((option = getopt(argc, argv, "u:c:t:Sk:r:b:m:H:L:")) > 0) switch (option) {
        case 'u': snprintf(host, sizeof host, "%s", optarg); break;
        case 'c': conc = atoi(optarg); break;
        case 't': seconds = atof(optarg); break;
        case 'S': streaming = 1; break;
        case 'k': runs = atoi(optarg); break;
        case 'r': ramp_ms = atoi(optarg); break;
        case 'b': prompt = optarg; break;
        case 'm': model = optarg; break;
        case 'H': strncat(headers, optarg, 1024), strcat(headers, "\r\n"); break;
        case 'L': limit = atof(optarg); break;
        default: return 2;
    }
    const char *count = strstr(prompt, "n=");
    if (streaming && count) expected = atoi(count + 2);
    strcpy(address, host);
    make_requests(host);
    parse_target(address);
    poller = epoll_create1(0);
    slot *slots = calloc(conc, sizeof *slots);
    for (int i = 0; i < conc; i++) slots[i].runs = runs, dial(&slots[i]);
    usleep(20000);  // the connects
    int64_t start = now_ns();
    until = start + seconds * 1e9;
    active = conc;
    struct epoll_event ready[256];
    while (active > 0) {
        int wait = 100;
        int64_t now = now_ns();
        for (; started < conc; started++) {
            int64_t due = start + (int64_t)ramp_ms * 1000000 * started / conc;
            if (due > now) {
                wait = (due - now) / 1000000;
                break;
            }
            ask(&slots[started]);
        }
        if (now > start + limit * 1e9) break;
        int got = epoll_wait(poller, ready, 256, wait);
        for (int i = 0; i < got; i++) readable(ready[i].data.ptr);
    }
    report((now_ns() - start) / 1e9);
    return 0;
}
