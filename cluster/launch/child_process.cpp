#include "cluster/launch/child_process.hpp"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string_view>
#include <utility>

#include "actors/base/deadlines.hpp"
#include "cluster/launch/pipe_ends.hpp"
#include "cluster/launch/start/retried.hpp"
#include "cluster/launch/start/zygote.hpp"

namespace troupe::cluster {
namespace {

// Of what is forked, to become its program.
constexpr std::chrono::milliseconds longest_start = actors::usual_deadlines.become;

struct child_pipes {
  pipe_ends out;
  pipe_ends err;
  pipe_ends failure;  // why the program could not be executed
};

result<child_pipes> open_pipes() {
  auto out = open_pipe();
  auto err = open_pipe();
  auto failure = open_pipe();
  for (const auto* one : {&out, &err, &failure})
    if (!*one) return tl::unexpected(one->error());
  ::fcntl(out->read.get(), F_SETFL, O_NONBLOCK);
  ::fcntl(err->read.get(), F_SETFL, O_NONBLOCK);
  return child_pipes{std::move(*out), std::move(*err), std::move(*failure)};
}

// A name to execute. /proc/self/exe would show as "exe" in ps; it stays where the file was
// replaced.
std::string executable(const std::filesystem::path& program) {
  std::error_code error;
  if (!std::filesystem::is_symlink(program, error)) return program.string();
  const std::string target = std::filesystem::read_symlink(program, error).string();
  return error || target.ends_with(" (deleted)") || target.front() != '/' ? program.string()
                                                                          : target;
}

bool is_this_program(const child_spec& spec) {
  return spec.program == child_spec().program;
}

std::vector<std::string> arguments_of(const child_spec& spec, const std::string& program) {
  std::vector<std::string> out{program};
  out.insert(out.end(), spec.arguments.begin(), spec.arguments.end());
  return out;
}

std::vector<std::string> environment_of(const child_spec& spec) {
  std::vector<std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (!spec.environment.contains(std::string(text.substr(0, text.find('=')))))
      out.emplace_back(text);
  }
  for (const auto& [name, value] : spec.environment)
    out.push_back(std::string(name).append("=").append(value));
  return out;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> out;
  out.reserve(words.size() + 1);
  for (std::string& word : words) out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

[[noreturn]] void become(child_start how) {
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) ::sigaction(number, &usual, nullptr);
  take_place(how);
  ::close_range(static_cast<unsigned>(how.failure) + 1, ~0U, CLOSE_RANGE_CLOEXEC);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(how.program, how.arguments, how.environment);
  give_up(how.failure);
}

// Forks with all signals blocked, so that no handler of ours runs in the child.
pid_t fork_and_become(const child_start& how) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = ::fork();
  if (pid == 0) become(how);
  const int reason = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = reason;
  return pid;
}

// With SIGCHLD ignored, which a parent of ours may have left us, the kernel would throw exit codes
// away.
void keep_exit_codes() {
  struct sigaction now {};
  ::sigaction(SIGCHLD, nullptr, &now);
  if (now.sa_handler != SIG_IGN) return;
  now.sa_handler = SIG_DFL;
  ::sigaction(SIGCHLD, &now, nullptr);
}

// Waits until the child has become its program: nothing, or why it could not.
std::optional<start_failure> failure_of_start(int fd) {
  // One that is stopped before it has started is not waited for: who expects it says that it is
  // late.
  pollfd word{fd, POLLIN, 0};
  const auto most = static_cast<int>(longest_start.count());
  if (retried([&] { return ::poll(&word, 1, most); }) == 0) return std::nullopt;
  start_failure why;
  const auto count = retried([&] { return ::read(fd, &why, sizeof why); });
  return count == sizeof why ? std::optional(why) : std::nullopt;
}

/// What the system says of a script whose interpreter is missing is said of the script.
std::string reason_of_start(const std::filesystem::path& program, int reason) {
  std::string line;
  if (reason == ENOENT) {
    std::ifstream script(program, std::ios::binary);
    std::getline(script, line);
  }
  const auto begin = line.starts_with("#!") ? line.find_first_not_of(" \t", 2) : std::string::npos;
  if (begin == std::string::npos) return std::strerror(reason);
  const auto interpreter = line.substr(begin, line.find_first_of(" \t\r", begin) - begin);
  return "its first line names the interpreter " + interpreter + ", which is not there";
}

tl::unexpected<error> cannot_start(const child_spec& spec, const start_failure& why) {
  return fail(errc::io_failed,
              spec.name + " cannot be started " +
                  (why.is_of_folder
                       ? "in its working folder " + spec.working_folder.string() + ": " +
                             std::strerror(why.reason) +
                             "; make that folder there, or name another one (working_folder of its "
                             "[[node]])"
                       : "(" + executable(spec.program) +
                             "): " + reason_of_start(executable(spec.program), why.reason)));
}

constexpr const char* words_on_memory =
    ", as the system does when the memory of the machine or of a control group runs out (see "
    "dmesg): raise the limit, or take smaller micro-batches (more of them), recompute activations "
    "or put fewer stages on this host";

/// How many processes the system has killed for lack of memory, in any control group.
std::uint64_t memory_kills() {
  std::ifstream counters("/proc/vmstat");
  std::string name;
  for (std::uint64_t count = 0; counters >> name >> count;)
    if (name == "oom_kill") return count;
  return 0;
}

/// Whether the system has killed for lack of memory since `at_start`, and since any child of this
/// process was said to have ended so: what killed one says nothing about the next.
bool is_new_memory_kill(std::uint64_t at_start) {
  static std::atomic<std::uint64_t> accounted = 0;
  const auto now = memory_kills();
  auto before = accounted.load();
  while (before < now && !accounted.compare_exchange_weak(before, now)) {
  }
  return now > std::max(at_start, before);
}

}  // namespace

std::string name_of_signal(int number) {
  const char* name = ::sigabbrev_np(number);
  return "signal " + std::to_string(number) +
         (name != nullptr ? std::string(" (SIG") + name + ")" : "");
}

std::string words_on_late_end(const std::string& name) {
  return name +
         " has not ended with the run: it may be stopped (SIGSTOP), or a disk may hold it up; "
         "it is waited for some seconds more, and then killed";
}

std::string describe(const child_exit& ended) {
  if (ended.signal != 0)
    return ended.name + " was killed by " + name_of_signal(ended.signal) +
           (ended.lacked_memory ? words_on_memory : "");
  if (ended.code < 0) return ended.name + " ended, and its exit code is lost";
  return ended.name + " exited with code " + std::to_string(ended.code);
}

bool was_launched() {
  const char* parent = std::getenv(started_by);
  return parent != nullptr && parent == std::to_string(::getppid());
}

result<child_process> child_process::start(const child_spec& spec) {
  auto pipes = open_pipes();
  if (!pipes) return tl::unexpected(pipes.error());
  auto& [out, err, failure] = *pipes;
  const descriptor in(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!in) return cannot_start(spec, {errno});
  const std::string program = executable(spec.program);
  std::vector<std::string> arguments = arguments_of(spec, program);
  std::vector<std::string> environment = environment_of(spec);
  const std::vector<char*> argument_pointers = pointers(arguments);
  const std::vector<char*> environment_pointers = pointers(environment);

  keep_exit_codes();
  const child_start how{
      .program = program.c_str(),
      .arguments = argument_pointers.data(),
      .environment = environment_pointers.data(),
      .working_folder = spec.working_folder.empty() ? nullptr : spec.working_folder.c_str(),
      .in = spec.standard_input < 0 ? in.get() : spec.standard_input,
      .out = out.write.get(),
      .err = err.write.get(),
      .failure = failure.write.get(),
      .handed_over = spec.handed_over,
      .parent = ::getpid()};
  child_process child;
  child.name_ = spec.name;
  pid_t pid = is_this_program(spec) ? copy_of_zygote(how) : 0;
  if (pid == 0) pid = fork_and_become(how);
  if (pid < 0) return cannot_start(spec, {errno});
  child.memory_kills_ = memory_kills();
  child.pid_ = pid;  // from here on it is killed and reaped if anything fails
  failure.write.reset();
  if (const auto why = failure_of_start(failure.read.get())) return cannot_start(spec, *why);
  child.pidfd_ = descriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!child.pidfd_) return cannot_start(spec, {errno});
  child.output_ = {std::move(out.read), std::move(err.read)};
  return child;
}

child_process::child_process(child_process&& other) noexcept
    : name_(std::move(other.name_)),
      pid_(std::exchange(other.pid_, 0)),
      memory_kills_(other.memory_kills_),
      stopped_(other.stopped_),
      pidfd_(std::move(other.pidfd_)),
      output_(std::move(other.output_)) {}

child_process& child_process::operator=(child_process&& other) noexcept {
  std::swap(name_, other.name_);
  std::swap(pid_, other.pid_);
  std::swap(memory_kills_, other.memory_kills_);
  std::swap(stopped_, other.stopped_);
  std::swap(pidfd_, other.pidfd_);
  std::swap(output_, other.output_);
  return *this;
}

child_process::~child_process() {
  kill_and_reap();
}

bool child_process::is_stopped() noexcept {
  if (pid_ == 0) return false;
  siginfo_t news{};
  const auto id = static_cast<id_t>(pid_);
  if (::waitid(P_PID, id, &news, WSTOPPED | WCONTINUED | WNOHANG) != 0) return false;
  if (news.si_pid == 0) return stopped_;
  const bool was_stopped = std::exchange(stopped_, news.si_code == CLD_STOPPED);
  return stopped_ && !was_stopped;  // else it has been continued meanwhile
}

void child_process::signal(int number) const noexcept {
  if (pid_ > 0) ::kill(pid_, number);  // not reaped yet, so the number is still its own
}

void child_process::signal_group(int number) const noexcept {
  // One that has yet to begin, or has left its group, is alone.
  if (pid_ > 0 && ::kill(-pid_, number) != 0) signal(number);
}

void child_process::kill_group() const noexcept {
  signal_group(SIGKILL);
}

std::optional<child_exit> child_process::try_reap() {
  if (pid_ == 0) return std::nullopt;
  siginfo_t how{};
  const auto id = static_cast<id_t>(pid_);
  const int status = retried([&] { return ::waitid(P_PID, id, &how, WEXITED | WNOHANG); });
  if (status == 0 && how.si_pid == 0) return std::nullopt;  // it runs
  child_exit ended{name_, std::exchange(pid_, 0), -1, 0};
  pidfd_.reset();
  if (status != 0) return ended;  // somebody else reaped it
  if (how.si_code == CLD_EXITED) {
    ended.code = how.si_status;
  } else {
    ended.code = 0;
    ended.signal = how.si_status;
    ended.lacked_memory = ended.signal == SIGKILL && is_new_memory_kill(memory_kills_);
  }
  return ended;
}

void child_process::kill_and_reap() noexcept {
  if (pid_ == 0) return;
  kill_group();
  ::kill(pid_, SIGKILL);
  retried([this] { return ::waitpid(pid_, nullptr, 0); });
  pid_ = 0;
}

}  // namespace troupe::cluster
