#include "cluster/launch/start/copying.hpp"

#include <linux/prctl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cluster/launch/start/copy_order.hpp"
#include "cluster/launch/start/process_start.hpp"
#include "cluster/launch/start/shown_words.hpp"

namespace troupe::cluster {
namespace {

/// Where the C library has this thread's number; null where the kernel does not say.
int* thread_number() noexcept {
  int* where = nullptr;
  return ::prctl(PR_GET_TID_ADDRESS, &where, 0, 0, 0) == 0 ? where : nullptr;
}

/// `fork`, but the new process is our parent's child. Of the C library's state it needs what `fork`
/// does for a process of one thread that holds no lock: the thread's number, which the kernel
/// writes, and its list of robust mutexes.
long fork_beside(int* number) noexcept {
  constexpr unsigned long flags =
      CLONE_PARENT | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD;
  void* mutexes = nullptr;
  std::size_t bytes = 0;
  ::syscall(SYS_get_robust_list, 0, &mutexes, &bytes);
#if defined(__x86_64__)
  const long pid = ::syscall(SYS_clone, flags, nullptr, nullptr, number, nullptr);
#elif defined(__aarch64__)
  const long pid = ::syscall(SYS_clone, flags, nullptr, nullptr, nullptr, number);
#else
  const long pid = -1;
#endif
  if (pid == 0) ::syscall(SYS_set_robust_list, mutexes, bytes);
  return pid;
}

/// An order's file in memory, which stays: the command line and the environment are in it.
struct order_words {
  order_text head;
  std::vector<char*> arguments;  // a null pointer ends them, and so below
  std::vector<char*> environment;
  const char* folder = nullptr;
  words_in_memory shown;
};

bool read_all(int file, char* to, std::size_t count, off_t from) {
  for (std::size_t done = 0; done < count;) {
    const auto got = ::pread(file, to + done, count - done, from + static_cast<off_t>(done));
    if (got == 0) errno = EIO;
    if (got == 0 || (got < 0 && errno != EINTR)) return false;
    if (got > 0) done += static_cast<std::size_t>(got);
  }
  return true;
}

std::vector<char*> take_words(char*& at, std::uint32_t count) {
  std::vector<char*> out;
  for (std::uint32_t i = 0; i < count; ++i, at += std::strlen(at) + 1) out.push_back(at);
  out.push_back(nullptr);
  return out;
}

order_words read_words(const copy_order& order) {
  order_words out;
  if (!read_all(order.text, reinterpret_cast<char*>(&out.head), sizeof out.head, 0))
    give_up(order.failure);
  void* const memory =
      ::mmap(nullptr, out.head.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) give_up(order.failure);
  char* at = static_cast<char*>(memory);
  if (!read_all(order.text, at, out.head.bytes, sizeof out.head)) give_up(order.failure);
  out.shown.arguments = at;
  out.arguments = take_words(at, out.head.arguments);
  out.shown.environment = at;
  out.environment = take_words(at, out.head.entries);
  out.shown.end = at;
  if (out.head.has_folder) out.folder = at;
  return out;
}

/// As execve leaves signals: what was ignored has its default; the libraries' own handlers stay.
void heed_signals() noexcept {
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction now {};
    if (::sigaction(number, nullptr, &now) != 0 || now.sa_handler != SIG_IGN) continue;
    now.sa_handler = SIG_DFL;
    ::sigaction(number, &now, nullptr);
  }
}

void take_limits(const order_text& from, int failure) noexcept {
  for (int which = 0; which < static_cast<int>(RLIM_NLIMITS); ++which) {
    const auto resource = static_cast<__rlimit_resource>(which);
    const rlimit& wanted = from.limits[which];
    rlimit now{};
    if (::getrlimit(resource, &now) != 0) continue;
    if (now.rlim_cur == wanted.rlim_cur && now.rlim_max == wanted.rlim_max) continue;
    if (::setrlimit(resource, &wanted) != 0) give_up(failure);
  }
}

/// Turns a new copy into what the order says.
command_words become(const copy_order& order, int socket) {
  const pid_t self = ::getpid();
  // A parent that has given the zygote up does not wait for this copy, and has started another.
  if (::send(socket, &self, sizeof self, MSG_NOSIGNAL) != sizeof self) ::_exit(127);
  static order_words words;  // as long as the process
  words = read_words(order);
  child_start how{.program = words.arguments.front(),
                  .arguments = words.arguments.data(),
                  .environment = words.environment.data(),
                  .working_folder = words.folder,
                  .in = order.in,
                  .out = order.out,
                  .err = order.err,
                  .failure = order.failure,
                  .handed_over = order.handed_over,
                  .parent = words.head.parent};
  heed_signals();
  take_limits(words.head, how.failure);
  if (::fchdir(order.folder) != 0) give_up(how.failure);
  take_place(how);
  ::close_range(static_cast<unsigned>(how.failure) + 1, ~0U, 0);
  environ = words.environment.data();
  program_invocation_name = words.arguments.front();
  show_words(words.shown);
  show_name(words.arguments.front());
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::close(how.failure);
  begin_process_again();
  return {static_cast<int>(words.head.arguments), words.arguments.data()};
}

}  // namespace

bool can_copy() noexcept {
  const int* const number = thread_number();
  return number != nullptr && *number == ::getpid();
}

command_words copy_on_order(int socket) {
  show_name(zygote_name);
  show_only_word(zygote_name);
  int* const number = thread_number();
  for (;;) {
    const auto order = receive_order(socket);
    if (!order) ::_exit(0);
    const long pid = fork_beside(number);
    if (pid == 0) return become(*order, socket);
    constexpr pid_t none = 0;
    if (pid < 0 && ::send(socket, &none, sizeof none, MSG_NOSIGNAL) < 0) ::_exit(0);
    close_order(*order);
  }
}

}  // namespace troupe::cluster
