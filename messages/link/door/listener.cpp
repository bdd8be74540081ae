#include "messages/link/door/listener.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>

#include "messages/base/host_name.hpp"
#include "messages/link/cluster_secret.hpp"
#include "messages/link/private_folder.hpp"
#include "messages/link/seal/format.hpp"

namespace troupe::messages::door {
namespace {

constexpr int backlog = 4096;  // the system bounds it

/// What to do where nobody can listen.
std::string remedy_of(int problem) {
  if (problem == EADDRINUSE)
    return fmt::format(
        " on {}; end the process that listens there (ss -ltnp shows it), or name another port, or "
        "0 for any free one",
        host_name());
  if (problem == EADDRNOTAVAIL)
    return fmt::format("; no interface of {} has this address (ip address shows which it has)",
                       host_name());
  if (problem == EACCES)
    return fmt::format(" on {}; name a port above 1023, which need not be root's", host_name());
  return "";
}

tl::unexpected<error> unavailable(const std::string& text, int problem) {
  return fail(errc::address_unavailable, fmt::format("cannot listen at {}: {}{}", text,
                                                     std::strerror(problem), remedy_of(problem)));
}

/// Why no connection over a network came about. Where this host did not even send, the system's
/// words alone do not say so: a route that leads nowhere is an "Invalid argument".
std::string words_of(int problem) {
  const char* const said = std::strerror(problem);
  if (problem == EINVAL || problem == ENETUNREACH)
    return fmt::format("no route leads there from {}: {}", host_name(), said);
  if (problem == EHOSTUNREACH)
    return fmt::format("no host answers there, or no route leads there from {}: {}", host_name(),
                       said);
  if (problem == EACCES || problem == EPERM)
    return fmt::format("{}'s own routes or firewall forbid it: {}", host_name(), said);
  return said;
}

descriptor open_socket(int family) {
  return descriptor(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

result<descriptor> bound_socket(const address& where, const std::string& text) {
  descriptor out = open_socket(where.storage.ss_family);
  if (!out)
    return fail(errc::io_failed, fmt::format("cannot open a socket: {}", std::strerror(errno)));
  const int on = 1;
  if (!where.is_unix()) ::setsockopt(out.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(out.get(), where.get(), where.length) != 0) return unavailable(text, errno);
  return out;
}

/// Where this user's sockets are. Errors: address_unavailable.
result<std::string> private_folder() {
  const std::string folder = socket_folder();
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return fail(errc::address_unavailable,
                fmt::format("cannot make the folder {}: {}", folder, std::strerror(errno)));
  if (is_private_folder(folder)) return folder;
  return fail(
      errc::address_unavailable,
      fmt::format("{} is not a folder of this user's that nobody else enters: remove it, or "
                  "set XDG_RUNTIME_DIR",
                  folder));
}

/// Looks at a segment from its TCP header on, before there is a socket for its sender. The bare end
/// of TCP's own handshake is dropped too: a peer's hello carries it as well.
constexpr std::array<sock_filter, 14> only_hellos = {{
    BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 13),                        // flags
    BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, TH_SYN | TH_RST, 10, 0),  // pass
    BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 12),                        // the header's length
    BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 2),                        // in bytes
    BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0x3C),                     //
    BPF_STMT(BPF_MISC | BPF_TAX, 0),                               //
    BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0),                         // what follows it
    BPF_STMT(BPF_ALU | BPF_SUB | BPF_X, 0),                        //
    BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, sizeof(wire::handshake_message), 0, 4),
    BPF_STMT(BPF_LD | BPF_W | BPF_IND, 0),  // in the network's order
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __builtin_bswap32(wire::wire_magic), 1, 0),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __builtin_bswap32(wire::knock_magic), 0, 1),
    BPF_STMT(BPF_RET | BPF_K, 0xFFFFFFFF),
    BPF_STMT(BPF_RET | BPF_K, 0),
}};

/// Requests whose hello does not come are forgotten after 3 s, not 63.
constexpr int answers_again = 1;

descriptor spare_descriptor() {
  return descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

bool is_deserted(const address& where) {
  const descriptor probe = open_socket(AF_UNIX);
  return probe && ::connect(probe.get(), where.get(), where.length) != 0 && errno == ECONNREFUSED;
}

/// As it was when the first neighbour came: it is the machine's, and does not change.
uid_t overflow_user() {
  static const uid_t known = [] {
    std::ifstream file("/proc/sys/kernel/overflowuid");
    uid_t out = 65534;
    file >> out;
    return out;
  }();
  return known;
}

}  // namespace

void sweep_left_sockets() {
  const std::string folder = socket_folder();
  if (!is_private_folder(folder)) return;  // somebody else's may lead anywhere
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(folder.c_str()), &::closedir);
  if (!entries) return;
  while (const dirent* const entry = ::readdir(entries.get())) {
    const long process = std::strtol(entry->d_name, nullptr, 10);
    if (process <= 0 || ::kill(static_cast<pid_t>(process), 0) == 0 || errno != ESRCH) continue;
    const std::string path = fmt::format("{}/{}", folder, entry->d_name);
    const auto where = unix_address(path);
    if (where && is_deserted(*where)) ::unlink(path.c_str());
  }
}

result<void> check_free(const std::string& text) {
  const auto where = resolve(text, true);
  if (!where) return tl::unexpected(where.error());
  if (where->is_unix()) return {};
  return bound_socket(*where, text).map([](const descriptor&) {});
}

result<listener> listener::open(const address& where, const std::string& text) {
  auto socket = bound_socket(where, text);
  if (!socket) return tl::unexpected(socket.error());
  listener out;
  out.socket_ = std::move(*socket);
  if (where.is_unix()) out.path_ = where.text().substr(5);
  if (::listen(out.socket_.get(), backlog) != 0) return unavailable(text, errno);
  address bound;
  bound.length = sizeof(bound.storage);
  auto* const storage = reinterpret_cast<sockaddr*>(&bound.storage);
  if (::getsockname(out.socket_.get(), storage, &bound.length) != 0)
    return unavailable(text, errno);
  out.text_ = bound.text();
  out.spare_ = spare_descriptor();
  return out;
}

result<listener> listener::open_private() {
  const auto folder = private_folder();
  if (!folder) return tl::unexpected(folder.error());
  sweep_left_sockets();
  std::array<std::byte, 8> random;
  fill_random(random);
  std::uint64_t number = 0;
  std::memcpy(&number, random.data(), sizeof(number));
  const auto where = unix_address(fmt::format("{}/{}-{:016x}", *folder, ::getpid(), number));
  if (!where) return tl::unexpected(where.error());
  return open(*where, where->text());
}

listener& listener::operator=(listener&& other) noexcept {
  std::swap(socket_, other.socket_);
  std::swap(spare_, other.spare_);
  std::swap(text_, other.text_);
  std::swap(path_, other.path_);
  std::swap(has_screened_, other.has_screened_);
  return *this;
}

listener::~listener() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

bool listener::screen(bool on) {
  if (!path_.empty()) return false;
  const int unused = 0;
  sock_fprog program{only_hellos.size(), const_cast<sock_filter*>(only_hellos.data())};
  if (on) {
    has_screened_ = true;
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_SYNCNT, &answers_again, sizeof(answers_again));
    return ::setsockopt(socket_.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) ==
           0;
  }
  return ::setsockopt(socket_.get(), SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof(unused)) == 0;
}

std::optional<visitor> listener::accept() {
  if (!spare_) spare_ = spare_descriptor();  // another thread was quicker the last time
  address from;
  from.length = sizeof(from.storage);
  auto* const storage = reinterpret_cast<sockaddr*>(&from.storage);
  visitor out;
  do {
    out.socket =
        descriptor(::accept4(socket_.get(), storage, &from.length, SOCK_CLOEXEC | SOCK_NONBLOCK));
  } while (!out.socket && (errno == EINTR || errno == ECONNABORTED));
  if (!out.socket && (errno == EMFILE || errno == ENFILE) && spare_) {
    spare_.reset();
    descriptor(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC)).reset();
    spare_ = spare_descriptor();
  }
  if (!out.socket) return std::nullopt;
  if (has_screened_) {
    // A socket that was made meanwhile has the filter too.
    const int unused = 0;
    ::setsockopt(out.socket.get(), SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof(unused));
  }
  const bool is_unix = from.storage.ss_family == AF_UNIX;
  if (is_unix) {
    const neighbour who = identify(out.socket.get());
    out.process = who.process;
    out.is_other_user = who.is_other_user;
  }
  out.name = is_unix ? fmt::format("process {}", out.process) : from.text();
  out.host = from.host();
  out.is_local = !is_unix && from.is_local();
  return out;
}

result<descriptor> dial(const address& where) {
  descriptor out = open_socket(where.storage.ss_family);
  if (!out) return fail(errc::io_failed, fmt::format("no socket: {}", std::strerror(errno)));
  if (::connect(out.get(), where.get(), where.length) == 0 || errno == EINPROGRESS) return out;
  const errc code = errno == EAGAIN ? errc::timed_out : errc::address_unavailable;
  return fail(code, where.is_unix() ? std::strerror(errno) : words_of(errno));
}

result<void> check_dialled(int socket) {
  int problem = 0;
  socklen_t length = sizeof(problem);
  if (::getsockopt(socket, SOL_SOCKET, SO_ERROR, &problem, &length) != 0) problem = errno;
  if (problem == 0) return {};
  return fail(errc::address_unavailable, words_of(problem));
}

neighbour identify(int unix_socket) {
  ucred other{};
  socklen_t length = sizeof(other);
  neighbour out;
  if (::getsockopt(unix_socket, SOL_SOCKET, SO_PEERCRED, &other, &length) != 0) {
    out.unknown = std::strerror(errno);
    return out;
  }
  out.process = other.pid > 0 ? static_cast<std::uint64_t>(other.pid) : 0;
  out.is_other_user = other.uid != ::geteuid() || other.uid == overflow_user();
  return out;
}

}  // namespace troupe::messages::door
