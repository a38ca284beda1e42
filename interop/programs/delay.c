/*
 * delay MILLISECONDS ONE OTHER LOG: a link with a delay between two Ethernet devices of this network namespace.
 *
 * For systems whose kernel has no netem. Every frame that arrives at ONE leaves from OTHER after the delay, and the
 * reverse. The order is kept, and no frame is lost unless more than ROOM bytes are under way in one direction. The
 * devices have no addresses and answer nothing themselves (`ip link set DEVICE arp off`). Frames that the sender's
 * kernel has not segmented yet (GSO) stay whole, as between namespaces without a delay. Therefore one core moves more
 * than a gigabyte per second. LOG gets "ready", and at SIGTERM the numbers of forwarded and lost frames per direction.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>

#define ROOM ((uint64_t)256 << 20)
/* The virtio header, the largest frame, and room for its link-layer header. */
#define LARGEST (sizeof(struct virtio_net_hdr) + 65536 + 64)
#define SOCKET_ROOM (64 << 20)

struct frame {
    uint64_t due;
    uint32_t length; /* 0: the next frame is at the start of the ring */
    uint32_t pad;
    char bytes[];
};

/* One direction: a ring of frames. */
struct line {
    int from, to;
    char *ring;
    uint64_t head, tail; /* the places of the next write and read; they only grow */
    uint64_t frames, bytes, dropped, most;
};

static volatile sig_atomic_t stop;
static void on_term(int signal) { stop = signal; }

static void die(const char *what) {
    perror(what);
    exit(1);
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int open_device(const char *name) {
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = if_nametoindex(name)};
    int one = 1, room = SOCKET_ROOM;
    if (address.sll_ifindex == 0)
        die(name);
    /* No protocol before the bind, so that no frames of other devices arrive. */
    int s = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, 0);
    if (s < 0)
        die("socket");
    if (setsockopt(s, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one) < 0)
        die("PACKET_VNET_HDR");
    /* Frames that this program sends do not come back. */
    if (setsockopt(s, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one) < 0)
        die("PACKET_IGNORE_OUTGOING");
    setsockopt(s, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
    setsockopt(s, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room);
    if (bind(s, (struct sockaddr *)&address, sizeof address) < 0)
        die("bind");
    return s;
}

static uint64_t size_of(uint32_t length) { return (sizeof(struct frame) + length + 15) & ~(uint64_t)15; }

static struct frame *at(struct line *line, uint64_t place) { return (struct frame *)(line->ring + place % ROOM); }

/* Receives the waiting frames, some at a time. */
static void take(struct line *line, uint64_t delay) {
    static char scratch[LARGEST];
    for (int i = 0; i < 64; i++) {
        uint64_t left = ROOM - line->head % ROOM;
        if (left < size_of(LARGEST)) {
            if (line->head + left + size_of(LARGEST) - line->tail <= ROOM) {
                at(line, line->head)->length = 0;
                line->head += left;
            }
            left = ROOM - line->head % ROOM;
        }
        int full = left < size_of(LARGEST) || line->head + size_of(LARGEST) - line->tail > ROOM;
        struct frame *frame = at(line, line->head);
        ssize_t length = recv(line->from, full ? scratch : frame->bytes, LARGEST, 0);
        if (length <= 0)
            return;
        if (full) {
            line->dropped++;
            continue;
        }
        frame->due = now() + delay;
        frame->length = length;
        line->head += size_of(length);
        line->frames++;
        line->bytes += length - sizeof(struct virtio_net_hdr);
        if (line->head - line->tail > line->most)
            line->most = line->head - line->tail;
    }
}

/* Sends the frames that are due; returns the time of the next one, or 0 if there is none. */
static uint64_t let_out(struct line *line) {
    while (line->tail != line->head) {
        struct frame *frame = at(line, line->tail);
        if (frame->length == 0) {
            line->tail += ROOM - line->tail % ROOM;
            continue;
        }
        if (frame->due > now())
            return frame->due;
        if (send(line->to, frame->bytes, frame->length, 0) < 0) {
            if (errno == EAGAIN || errno == ENOBUFS)
                return frame->due + 100000;
            line->dropped++;
        }
        line->tail += size_of(frame->length);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "delay MILLISECONDS ONE OTHER LOG\n");
        return 2;
    }
    uint64_t delay = strtod(argv[1], NULL) * 1e6;
    int one = open_device(argv[2]), other = open_device(argv[3]);
    struct line lines[2] = {{.from = one, .to = other}, {.from = other, .to = one}};
    for (int i = 0; i < 2; i++) {
        lines[i].ring = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (lines[i].ring == MAP_FAILED)
            die("mmap");
        madvise(lines[i].ring, ROOM, MADV_HUGEPAGE);
    }
    FILE *log = fopen(argv[4], "w");
    if (!log)
        die(argv[4]);
    signal(SIGTERM, on_term);
    prctl(PR_SET_TIMERSLACK, 1);
    fprintf(log, "ready\n");
    fflush(log);
    while (!stop) {
        uint64_t next = 0;
        for (int i = 0; i < 2; i++) {
            take(&lines[i], delay);
            uint64_t due = let_out(&lines[i]);
            if (due && (!next || due < next))
                next = due;
        }
        uint64_t t = now(), wait = !next ? 100000000 : next > t ? next - t : 0;
        struct timespec timeout = {wait / 1000000000, wait % 1000000000};
        struct pollfd both[2] = {{.fd = one, .events = POLLIN}, {.fd = other, .events = POLLIN}};
        ppoll(both, 2, &timeout, NULL);
    }
    for (int i = 0; i < 2; i++) {
        struct tpacket_stats lost = {0};
        socklen_t length = sizeof lost;
        getsockopt(lines[i].from, SOL_PACKET, PACKET_STATISTICS, &lost, &length);
        fprintf(log, "%s to %s: %llu frames, %llu bytes, at most %llu under way; lost %llu\n", argv[2 + i], argv[3 - i],
                (unsigned long long)lines[i].frames, (unsigned long long)lines[i].bytes, (unsigned long long)lines[i].most,
                (unsigned long long)(lines[i].dropped + lost.tp_drops));
    }
    return 0;
}
