// What the stub engine and the load client must agree on: the clock, the checksum, and how an answer ends.
#ifndef BENCH_COMMON_H
#define BENCH_COMMON_H
#include <stdint.h>
#include <stddef.h>
#include <time.h>

// A streamed event carries "T!<CLOCK_MONOTONIC ns, 16 digits>#<sequence number>" as its content; the last one goes on
// with " S!<checksum, 16 hex digits>", taken over every byte of the answer before the "S!". An answer that is not
// streamed ends its content with the same "S!". What follows the checksum is always one of these two texts.
#define STAMP_DIGITS 16
#define SUM_DIGITS 16
#define STREAM_END "\"},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null,\"token_ids\":null}]}\n\n" \
                   "data: [DONE]\n\n"
#define ANSWER_END "\"},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null,\"token_ids\":null}]," \
                   "\"usage\":{\"prompt_tokens\":120,\"total_tokens\":248,\"completion_tokens\":128}}"
#define SUM_START 1469598103934665603ULL

static inline int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

// A polynomial over the bytes, so data may be cut anywhere; eight at a time, because each waits only for the eight before.
#define K1 0x100000001b3ULL
#define K2 (K1 * K1)
#define K4 (K2 * K2)
static inline uint64_t sum_bytes(uint64_t sum, const char *data, size_t size) {
    const unsigned char *at = (const unsigned char *)data, *end = at + size;
    for (; end - at >= 8; at += 8) {
        uint64_t high = (at[0] * K1 + at[1]) * K2 + at[2] * K1 + at[3];
        uint64_t low = (at[4] * K1 + at[5]) * K2 + at[6] * K1 + at[7];
        sum = sum * (K4 * K4) + high * K4 + low;
    }
    for (; at < end; at++) sum = sum * K1 + *at;
    return sum;
}
#endif
