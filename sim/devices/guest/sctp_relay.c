// Carries the messages of an SCTP association to a TCP connection, and back.
//
// sctp_relay ADDRESS SCTP_PORT TCP_PORT returns once both ports listen. The program ends with one of
// its two connections, and ends the other one gracefully.
//
// On TCP each message has a header in network order: length (4 octets), PPID (4), SCTP stream (2),
// and 1 if the message is unordered (2).

#include <arpa/inet.h>
#include <err.h>
#include <linux/sctp.h>
#include <netdb.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct { uint32_t length, ppid; uint16_t stream, unordered; } head;
static char octets[1 << 17];
static union { struct cmsghdr first; char room[256]; } control;
static struct iovec vector = {.iov_base = octets};
static struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control};

static int need(int outcome, const char *what) {
    if (outcome < 0) err(1, "%s", what);
    return outcome;
}

static int listening(int protocol, const char *address, const char *port) {
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE,
                                   .ai_socktype = SOCK_STREAM};
    struct addrinfo *found;
    const int yes = 1;
    if (getaddrinfo(address, port, &hints, &found)) errx(2, "%s or %s is wrong", address, port);
    const int made = need(socket(found->ai_family, SOCK_STREAM, protocol), "socket");
    need(setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes), "SO_REUSEADDR");
    need(bind(made, found->ai_addr, found->ai_addrlen), "bind");
    if (protocol == IPPROTO_SCTP) {
        // RFC 5043 section 5.1: "DDP" is the Adaptation Code Point 0x00000001.
        const struct sctp_setadaptation ddp = {1};
        const struct sctp_initmsg streams = {.sinit_num_ostreams = 16, .sinit_max_instreams = 16};
        need(setsockopt(made, IPPROTO_SCTP, SCTP_ADAPTATION_LAYER, &ddp, sizeof ddp), "adaptation");
        need(setsockopt(made, IPPROTO_SCTP, SCTP_INITMSG, &streams, sizeof streams), "streams");
        need(setsockopt(made, IPPROTO_SCTP, SCTP_RECVRCVINFO, &yes, sizeof yes), "RECVRCVINFO");
        need(setsockopt(made, IPPROTO_SCTP, SCTP_NODELAY, &yes, sizeof yes), "NODELAY");
    }
    need(listen(made, 1), "listen");
    return made;
}

static int receive(int sctp) {
    message.msg_controllen = sizeof control;
    vector.iov_len = sizeof octets;
    const ssize_t length = recvmsg(sctp, &message, 0);
    if (length <= 0) return 0;
    if (!(message.msg_flags & MSG_EOR)) errx(1, "a message is too long");
    const struct sctp_rcvinfo *info = (void *)CMSG_DATA(&control.first);
    head.length = htonl(length);
    head.ppid = info->rcv_ppid;  // passed on as it stood in the chunk
    head.stream = htons(info->rcv_sid);
    head.unordered = htons(!!(info->rcv_flags & SCTP_UNORDERED));
    return 1;
}

static int send_all(int tcp, const char *at, size_t length) {
    for (ssize_t done; length; at += done, length -= done)
        if ((done = send(tcp, at, length, MSG_NOSIGNAL)) < 0) return 0;
    return 1;
}

static int pass(int sctp) {
    const struct sctp_sndinfo info = {.snd_sid = ntohs(head.stream), .snd_ppid = head.ppid,
                                      .snd_flags = ntohs(head.unordered) ? SCTP_UNORDERED : 0};
    control.first = (struct cmsghdr){CMSG_LEN(sizeof info), IPPROTO_SCTP, SCTP_SNDINFO};
    memcpy(CMSG_DATA(&control.first), &info, sizeof info);
    message.msg_controllen = CMSG_SPACE(sizeof info);
    vector.iov_len = ntohl(head.length);
    return sendmsg(sctp, &message, MSG_NOSIGNAL) >= 0;
}

int main(int count, char **words) {
    if (count != 4) errx(2, "the arguments must be ADDRESS SCTP_PORT TCP_PORT");
    const int sctp_at = listening(IPPROTO_SCTP, words[1], words[2]);
    const int tcp_at = listening(IPPROTO_TCP, NULL, words[3]);
    need(daemon(1, 0), "daemon");
    const int tcp = need(accept(tcp_at, NULL, NULL), "accept");
    const int sctp = need(accept(sctp_at, NULL, NULL), "accept");
    struct pollfd both[] = {{.fd = sctp, .events = POLLIN}, {.fd = tcp, .events = POLLIN}};
    for (int runs = 1; runs && poll(both, 2, -1) > 0;) {
        if (both[0].revents)
            runs = receive(sctp) && send_all(tcp, (char *)&head, sizeof head) &&
                   send_all(tcp, octets, ntohl(head.length));
        else
            runs = recv(tcp, &head, sizeof head, MSG_WAITALL) == sizeof head &&
                   ntohl(head.length) <= sizeof octets &&
                   recv(tcp, octets, ntohl(head.length), MSG_WAITALL) == ntohl(head.length) &&
                   pass(sctp);
    }
    return 0;
}
