// A stub engine that answers like vLLM's OpenAI server. One thread, epoll, no model.
//   stub PORT [PORT...]
// What a request gets is written in its prompt, so that no gateway loses it:  bench:n=128,i=20,d=0,s=1024
//   n  events of a stream    i  ms between them (0 = as fast as they go, one write each, round robin over the streams)
//   d  ms before the first byte    s  bytes of an answer that is not streamed
// Asked for, a usage event (stream_options.include_usage) and token ids (return_token_ids) are sent too; neither is in
// the checksum, which is that of the answer the client asked for.
#define _GNU_SOURCE
#include "common.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum role { CLIENT, LISTENER, TIMER };
enum work { NONE, ANSWER, STREAM };

typedef struct conn {
    enum role role;
    enum work work;
    int fd, port, seq, total, size, usage, token_ids, blocked;
    int heap_at, flood_at;  // places in the two schedules, -1 = in neither
    int64_t due, interval;
    uint64_t sum;
    char *in, *out;
    size_t in_len, in_cap, out_len, out_sent, out_cap;
} conn;

static int poller;
static conn **heap, **flood;
static int heap_len, heap_cap, flood_len, flood_cap;
static long running, requests;

// --- schedules: a heap of what is due when, and a list of the streams without pauses

static void heap_set(int at, conn *c) { heap[at] = c; c->heap_at = at; }
static void heap_up(int at) {
    conn *c = heap[at];
    for (; at && heap[(at - 1) / 2]->due > c->due; at = (at - 1) / 2) heap_set(at, heap[(at - 1) / 2]);
    heap_set(at, c);
}
static void heap_down(int at) {
    conn *c = heap[at];
    for (;;) {
        int child = 2 * at + 1;
        if (child + 1 < heap_len && heap[child + 1]->due < heap[child]->due) child++;
        if (child >= heap_len || heap[child]->due >= c->due) break;
        heap_set(at, heap[child]);
        at = child;
    }
    heap_set(at, c);
}
static void heap_push(conn *c) {
    if (heap_len == heap_cap) heap = realloc(heap, (heap_cap = heap_cap ? heap_cap * 2 : 256) * sizeof *heap);
    heap[heap_len] = c;
    heap_up(heap_len++);
}
static void heap_remove(conn *c) {
    int at = c->heap_at;
    if (at < 0) return;
    c->heap_at = -1;
    if (at == --heap_len) return;
    conn *moved = heap[heap_len];
    heap_set(at, moved);
    heap_up(at);
    heap_down(moved->heap_at);
}
static void flood_push(conn *c) {
    if (c->flood_at >= 0) return;
    if (flood_len == flood_cap) flood = realloc(flood, (flood_cap = flood_cap ? flood_cap * 2 : 256) * sizeof *flood);
    c->flood_at = flood_len;
    flood[flood_len++] = c;
}
static void flood_remove(conn *c) {
    int at = c->flood_at;
    if (at < 0) return;
    c->flood_at = -1;
    if (at == --flood_len) return;
    flood[at] = flood[flood_len];
    flood[at]->flood_at = at;
}

// --- bytes out

static void watch(conn *c, int writable) {
    struct epoll_event event = {.events = EPOLLIN | (writable ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event);
}
static int put(conn *c, const char *data, size_t size) {  // -1 = the connection is gone
    if (c->out_len == c->out_sent) {
        ssize_t sent = send(c->fd, data, size, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) return -1;
        if (sent < 0) sent = 0;
        if ((size_t)sent == size) return 0;
        data += sent, size -= sent;
        c->out_len = c->out_sent = 0;
        c->blocked = 1;
        watch(c, 1);
    }
    if (c->out_len + size > c->out_cap) c->out = realloc(c->out, c->out_cap = (c->out_len + size) * 2);
    memcpy(c->out + c->out_len, data, size);
    c->out_len += size;
    return 0;
}
static int flush(conn *c) {
    while (c->out_sent < c->out_len) {
        ssize_t sent = send(c->fd, c->out + c->out_sent, c->out_len - c->out_sent, MSG_NOSIGNAL);
        if (sent < 0) return errno == EAGAIN ? 0 : -1;
        c->out_sent += sent;
    }
    c->out_len = c->out_sent = 0;
    c->blocked = 0;
    watch(c, 0);
    if (c->work == STREAM && !c->interval && c->heap_at < 0) flood_push(c);
    return 0;
}
static int reply(conn *c, const char *status, const char *type, const char *body) {
    char text[8192];
    int size = snprintf(text, sizeof text, "HTTP/1.1 %s\r\nserver: stub\r\ncontent-type: %s\r\ncontent-length: %zu\r\n\r\n%s",
                        status, type, strlen(body), body);
    return put(c, text, size);
}
static void done(conn *c) { c->work = NONE; running--; }

static int send_answer(conn *c) {
    static char text[1 << 20];
    static const char start[] =
        "{\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion\",\"created\":1795247508,\"model\":\"stub-model\","
        "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"";
    int size = sizeof start - 1, end = sizeof ANSWER_END - 1, want = c->size - end - SUM_DIGITS - 2;
    if (want > (int)sizeof text - 1024) want = sizeof text - 1024;
    char *body = text + 256;
    memcpy(body, start, size);
    while (size < want) body[size] = "abcdefghij klmnop qrst "[size % 23], size++;
    size += sprintf(body + size, "S!%016llx%s", (unsigned long long)sum_bytes(SUM_START, body, size), ANSWER_END);
    int head = sprintf(text, "HTTP/1.1 200 OK\r\nserver: stub\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n", size);
    memmove(text + head, body, size);
    done(c);
    return put(c, text, head + size);
}

static int framed(char *to, const char *data, int size) {  // as one HTTP chunk
    int head = sprintf(to, "%x\r\n", size);
    memcpy(to + head, data, size);
    memcpy(to + head + size, "\r\n", 2);
    return head + size + 2;
}
static int event_text(conn *c, char *to, int64_t at, const char *ids) {  // up to where the last one's checksum goes
    int size = sprintf(to,
        "data: {\"id\":\"chatcmpl-8d1e80fece71cc77\",\"object\":\"chat.completion.chunk\",\"created\":1795247508,"
        "\"model\":\"stub-model\",\"choices\":[{\"index\":0,\"delta\":{%s\"content\":\"T!%016lld#%d ",
        c->seq ? "" : "\"role\":\"assistant\",", (long long)at, c->seq);
    if (c->seq == c->total - 1) return size;
    return size + sprintf(to + size, "\"},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":%s}]}\n\n", ids);
}
static int send_event(conn *c, int64_t at) {  // 1 = that was the last, -1 = the connection is gone
    char text[2048], plain[1024], ids[32] = "null", other[1024];
    int size = 0, last = c->seq == c->total - 1;
    if (!c->seq) {
        c->sum = SUM_START;
        size = sprintf(text, "HTTP/1.1 200 OK\r\nserver: stub\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                             "transfer-encoding: chunked\r\n\r\n");
    }
    int len = event_text(c, plain, at, "null");
    c->sum = sum_bytes(c->sum, plain, len);
    const char *sent = plain;
    if (c->token_ids && !last) {
        sprintf(ids, "[%d]", 1000 + c->seq);
        len = event_text(c, other, at, ids);
        sent = other;
    }
    if (!last) {
        size += framed(text + size, sent, len);
        c->seq++;
        return put(c, text, size);
    }
    static const char ending[] = STREAM_END;
    int over = strstr(ending, "\n\n") + 2 - ending;
    len += sprintf(plain + len, "S!%016llx%.*s", (unsigned long long)c->sum, over, ending);
    size += framed(text + size, plain, len);
    if (c->usage) {
        len = sprintf(plain, "data: {\"id\":\"chatcmpl-8d1e80fece71cc77\",\"object\":\"chat.completion.chunk\",\"created\":1795247508,"
                             "\"model\":\"stub-model\",\"choices\":[],\"usage\":{\"prompt_tokens\":120,\"total_tokens\":%d,"
                             "\"completion_tokens\":%d}}\n\n", 120 + c->total, c->total);
        size += framed(text + size, plain, len);
    }
    size += framed(text + size, ending + over, sizeof ending - 1 - over);
    size += sprintf(text + size, "0\r\n\r\n");
    done(c);
    return put(c, text, size) < 0 ? -1 : 1;
}

// --- requests in

static int option(const char *at, const char *end, char key, int otherwise) {
    for (; at < end && *at != '"' && *at != '\\' && *at != ' '; at++)
        if (*at == key && at[1] == '=') return atoi(at + 2);
    return otherwise;
}
static int says_true(const char *body, size_t size, const char *key) {
    const char *end = body + size, *at = body;
    size_t len = strlen(key);
    while ((at = memmem(at, end - at, key, len))) {
        for (at += len; at < end && (*at == ' ' || *at == ':');) at++;
        if (end - at >= 4 && !memcmp(at, "true", 4)) return 1;
    }
    return 0;
}
static int begin(conn *c, const char *body, size_t size) {
    const char *end = body + size, *at = memmem(body, size, "bench:", 6);
    if (!at) at = end;
    int64_t now = now_ns();
    int stream = says_true(body, size, "\"stream\""), delay = option(at, end, 'd', 0);
    c->seq = 0;
    c->total = option(at, end, 'n', 128);
    c->size = option(at, end, 's', 1024);
    c->interval = option(at, end, 'i', 20) * 1000000LL;
    c->usage = says_true(body, size, "\"include_usage\"");
    c->token_ids = says_true(body, size, "\"return_token_ids\"");
    if (c->total < 1) c->total = 1;
    c->work = stream ? STREAM : ANSWER;
    c->due = now + delay * 1000000LL;
    running++;
    if (delay) heap_push(c);
    else if (!stream) return send_answer(c);
    else if (!c->interval) flood_push(c);
    else {
        c->due += c->interval;
        int state = send_event(c, now);
        if (state < 0) return -1;
        if (!state) heap_push(c);
    }
    return 0;
}
static int look_up(conn *c, const char *path) {
    char text[1024];
    if (!strcmp(path, "/v1/models"))
        return reply(c, "200 OK", "application/json",
                     "{\"object\":\"list\",\"data\":[{\"id\":\"stub-model\",\"object\":\"model\",\"created\":1795247508,"
                     "\"owned_by\":\"vllm\",\"root\":\"stub-model\",\"parent\":null,\"max_model_len\":32768,\"permission\":[]}]}");
    if (!strcmp(path, "/health") || !strcmp(path, "/ping") || !strcmp(path, "/health_generate"))
        return reply(c, "200 OK", "text/plain", "");
    if (!strcmp(path, "/version")) return reply(c, "200 OK", "application/json", "{\"version\":\"0.32.0\"}");
    if (!strcmp(path, "/get_model_info") || !strcmp(path, "/model_info"))
        return reply(c, "200 OK", "application/json",
                     "{\"model_path\":\"stub-model\",\"tokenizer_path\":\"stub-model\",\"is_generation\":true,"
                     "\"preferred_sampling_params\":null,\"weight_version\":\"default\"}");
    if (!strcmp(path, "/get_server_info") || !strcmp(path, "/server_info"))
        return reply(c, "200 OK", "application/json",
                     "{\"model_path\":\"stub-model\",\"served_model_name\":\"stub-model\",\"tokenizer_path\":\"stub-model\","
                     "\"dp_size\":1,\"tp_size\":1,\"max_running_requests\":256,\"version\":\"0.32.0\"}");
    if (!strcmp(path, "/metrics")) {
        const char *labels = "{engine=\"0\",model_name=\"stub-model\"}";
        snprintf(text, sizeof text,
                 "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running%s %ld.0\n"
                 "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting%s 0.0\n"
                 "# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc%s 0.1\n"
                 "# TYPE stub_requests counter\nstub_requests %ld\n", labels, running, labels, labels, requests);
        return reply(c, "200 OK", "text/plain; version=0.0.4; charset=utf-8", text);
    }
    return reply(c, "404 Not Found", "application/json",
                 "{\"error\":{\"message\":\"not found\",\"type\":\"NotFoundError\",\"param\":null,\"code\":404}}");
}
static int handle(conn *c, char *head, const char *body, size_t size) {
    char method[16] = "", path[256] = "";
    sscanf(head, "%15s %255s", method, path);
    path[strcspn(path, "?")] = 0;
    requests++;
    if (!strcmp(method, "POST") && (!strcmp(path, "/v1/chat/completions") || !strcmp(path, "/generate")))
        return begin(c, body, size);
    return look_up(c, path);
}
static long unchunk(char *data, size_t size, size_t *used) {  // length of the body, -1 = not all here yet
    size_t from = 0, to = 0;
    for (;;) {
        char *eol = memmem(data + from, size - from, "\r\n", 2);
        if (!eol) return -1;
        size_t len = strtoul(data + from, 0, 16), start = eol - data + 2;
        if (start + len + 2 > size) return -1;
        if (!len) {
            *used = start + 2;
            return to;
        }
        memmove(data + to, data + start, len);
        to += len, from = start + len + 2;
    }
}
static int pump(conn *c) {  // whole requests in the buffer; -1 = the connection is gone
    while (c->work == NONE && c->in_len) {
        char *end = memmem(c->in, c->in_len, "\r\n\r\n", 4);
        if (!end) return 0;
        size_t head = end - c->in + 4, used = head;
        end[2] = 0;  // the head as a string
        char *length = strcasestr(c->in, "\r\ncontent-length:");
        int state, chunked = strcasestr(c->in, "\r\ntransfer-encoding:") != 0;
        if (chunked) {  // on a copy: a body that is not complete must stay as it is
            size_t taken = 0, rest = c->in_len - head;
            char *copy = malloc(rest + 1);
            memcpy(copy, c->in + head, rest);
            long size = unchunk(copy, rest, &taken);
            if (size >= 0) state = handle(c, c->in, copy, size);
            free(copy);
            end[2] = '\r';
            if (size < 0) return 0;
            used += taken;
        } else {
            size_t size = length ? strtoul(length + 17, 0, 10) : 0;
            if (c->in_len < head + size) {
                end[2] = '\r';
                return 0;
            }
            used += size;
            state = handle(c, c->in, c->in + head, size);
        }
        if (state < 0) return -1;
        memmove(c->in, c->in + used, c->in_len - used);
        c->in_len -= used;
    }
    return 0;
}
static int take(conn *c) {
    for (;;) {
        if (c->in_cap - c->in_len < 4096) c->in = realloc(c->in, (c->in_cap = c->in_cap ? c->in_cap * 2 : 8192) + 1);
        size_t room = c->in_cap - c->in_len;
        ssize_t got = recv(c->fd, c->in + c->in_len, room, 0);
        if (!got || (got < 0 && errno != EAGAIN)) return -1;
        if (got < 0) break;
        c->in_len += got;
        if ((size_t)got < room) break;
    }
    return pump(c);
}

// --- the loop

static void drop(conn *c) {
    heap_remove(c);
    flood_remove(c);
    if (c->work != NONE) running--;
    close(c->fd);
    free(c->in);
    free(c->out);
    free(c);
}
static void add(conn *c) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event);
}
static void welcome(conn *listener) {
    int fd, on = 1;
    while ((fd = accept4(listener->fd, 0, 0, SOCK_NONBLOCK)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        conn *c = calloc(1, sizeof *c);
        c->fd = fd, c->port = listener->port, c->heap_at = c->flood_at = -1;
        add(c);
    }
}
static void listen_on(int port) {
    int on = 1;
    conn *c = calloc(1, sizeof *c);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    c->role = LISTENER, c->port = port, c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(c->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(c->fd, (void *)&to, sizeof to) || listen(c->fd, 4096)) {
        perror("stub: cannot listen");
        exit(1);
    }
    add(c);
}
static void run_due(void) {
    int64_t now = now_ns();
    while (heap_len && heap[0]->due <= now) {
        conn *c = heap[0];
        int state = 1;
        heap_remove(c);
        if (c->work == STREAM && !c->interval) {
            flood_push(c);
            continue;
        }
        c->due += c->interval;
        if (c->work == ANSWER) state = send_answer(c) < 0 ? -1 : 1;
        else state = send_event(c, now);
        if (!state) heap_push(c);
        if (state == 1) state = pump(c);
        if (state < 0) drop(c);
    }
    for (int i = 0; i < flood_len;) {
        conn *c = flood[i];
        int state = c->blocked ? 2 : send_event(c, now_ns());
        if (state) flood_remove(c);
        else i++;
        if (state == 1) state = pump(c);
        if (state < 0) drop(c);
    }
}
int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    poller = epoll_create1(0);
    conn timer = {.role = TIMER, .fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK)};
    add(&timer);
    for (int i = 1; i < argc; i++) listen_on(atoi(argv[i]));
    puts("ready");
    fflush(stdout);
    struct epoll_event events[256];
    int64_t armed = 0;  // when the timer goes off, 0 = never
    for (;;) {
        int64_t due = heap_len && !flood_len ? heap[0]->due : armed;
        if (due != armed) {
            struct itimerspec at = {.it_value = {due / 1000000000LL, due % 1000000000LL}};
            timerfd_settime(timer.fd, TFD_TIMER_ABSTIME, &at, 0);
            armed = due;
        }
        int count = epoll_wait(poller, events, 256, flood_len ? 0 : -1);
        for (int i = 0; i < count; i++) {
            conn *c = events[i].data.ptr;
            uint64_t ticks;
            if (c->role == TIMER) {
                if (read(c->fd, &ticks, sizeof ticks) > 0) armed = 0;
            } else if (c->role == LISTENER) welcome(c);
            else {
                int gone = (events[i].events & EPOLLOUT) && flush(c) < 0;
                if (!gone && (events[i].events & ~EPOLLOUT)) gone = take(c) < 0;
                if (gone) drop(c);
            }
        }
        run_due();
    }
}
