#include "tests/multiprocess/program.hpp"

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <poll.h>
#include <algorithm>
#include <catch2/catch_message.hpp>
#include <catch2/catch_test_macros.hpp>
#include <condition_variable>
#include <deque>
#include <fstream>
#include <mutex>
#include <optional>
#include <regex>
#include <sstream>
#include <system_error>
#include <utility>

#include "cluster/launch/process_group.hpp"
#include "cluster/launch/start/zygote.hpp"

namespace troupe::tests {
namespace {

/// The letter of a process's state, as ps shows it.
char state_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const auto end_of_name = line.rfind(')');
  return end_of_name == std::string::npos ? '-' : line.at(end_of_name + 2);
}

/// What the system shows as a process's name.
std::string name_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/comm");
  std::string name;
  std::getline(file, name);
  return name;
}

bool is_zygote(pid_t pid) {
  return name_of(pid) == cluster::zygote_name;
}

/// As the system lists them, which leaves one out now and then where another ends meanwhile.
std::vector<pid_t> listed_children_of(pid_t parent) {
  std::vector<pid_t> found;
  std::error_code gone;  // it may end while we look
  std::filesystem::directory_iterator tasks("/proc/" + std::to_string(parent) + "/task", gone);
  for (; !gone && tasks != std::filesystem::directory_iterator(); tasks.increment(gone)) {
    std::ifstream list(tasks->path() / "children");
    for (pid_t child = 0; list >> child;) found.push_back(child);
  }
  return found;
}

std::vector<pid_t> all_children_of(pid_t parent) {
  auto found = listed_children_of(parent);
  for (std::vector<pid_t> before; found != before;)
    before = std::exchange(found, listed_children_of(parent));
  return found;
}

/// Clock ticks that a process has computed.
long ticks_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  std::istringstream fields(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::string skipped;
  for (int field = 3; field < 14; ++field) fields >> skipped;
  long user = 0, system = 0;
  fields >> user >> system;
  return user + system;
}

/// What this process has started beside these; 0: nothing.
pid_t child_beside(const std::vector<pid_t>& others) {
  for (const auto child : children_of(getpid()))
    if (std::ranges::find(others, child) == others.end()) return child;
  return 0;
}

/// Looks every millisecond, for a minute.
template <class Condition>
bool wait_until(Condition is_met) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!is_met()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace

std::string program_outcome::last_line() const {
  std::istringstream lines(err);
  std::string line;
  std::string last;
  while (std::getline(lines, line)) {
    if (!line.empty()) last = line;
  }
  return last;
}

void program_outcome::show(const std::string& program, const std::vector<std::string>& command) {
  auto text = program;
  for (const auto& word : command) text += " " + word;
  if (!out.empty()) text += "\nstandard output:\n" + out;
  if (!err.empty()) text += "\nstandard error:\n" + err;
  shown_ = std::make_shared<Catch::ScopedMessage>(
      Catch::MessageBuilder("INFO", CATCH_INTERNAL_LINEINFO, Catch::ResultWas::Info) << text);
}

std::chrono::duration<double> seconds_to_go_on(const program_outcome& outcome) {
  static const std::regex told("go on, ([0-9.]+) s after the loss was known");
  std::smatch found;
  REQUIRE(std::regex_search(outcome.err, found, told));
  return std::chrono::duration<double>(std::stod(found[1]));
}

program_outcome run_other(const std::string& program, const std::vector<std::string>& arguments,
                          const std::function<void(pid_t, std::string_view)>& on_line,
                          std::chrono::minutes limit) {
  program_outcome outcome;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::string> lines;  // of standard error, not yet shown to on_line
  std::optional<cluster::child_exit> ended;
  bool ended_in_time = false;
  const auto begin = std::chrono::steady_clock::now();
  {
    auto group = cluster::process_group::create(
        {.on_exit =
             [&](const cluster::child_exit& how) {
               const std::lock_guard lock(mutex);
               ended = how;
               changed.notify_one();
             },
         .on_line =
             [&](std::string_view, cluster::output_stream stream, std::string_view line) {
               const std::lock_guard lock(mutex);
               auto& text = stream == cluster::output_stream::out ? outcome.out : outcome.err;
               (text += line) += '\n';
               if (stream == cluster::output_stream::err) lines.emplace_back(line);
               changed.notify_one();
             }});
    REQUIRE(group);
    const auto others = children_of(getpid());
    REQUIRE(group->start(
        {.name = "program", .arguments = arguments, .environment = {}, .program = program}));
    // Now, for it may have ended when its last lines are seen.
    const pid_t process = on_line ? child_beside(others) : 0;
    std::unique_lock lock(mutex);
    const auto has_news = [&] { return !lines.empty() || ended; };
    while (changed.wait_until(lock, begin + limit, has_news) && !lines.empty()) {
      const std::string line = std::move(lines.front());
      lines.pop_front();
      if (!on_line) continue;
      lock.unlock();
      REQUIRE(process > 0);
      on_line(process, line);
      lock.lock();
    }
    ended_in_time = ended.has_value();
  }
  outcome.seconds = std::chrono::steady_clock::now() - begin;
  REQUIRE(ended);
  outcome.code = ended->code;
  outcome.signal = ended->signal;
  outcome.show(program, arguments);
  CHECK(ended_in_time);
  return outcome;
}

line_handler at_line(const std::string& text, std::function<void(pid_t)> act) {
  return [text, act = std::move(act), acted = false](pid_t program, std::string_view line) mutable {
    if (acted || line.find(text) == std::string_view::npos) return;
    acted = true;
    act(program);
  };
}

line_handler one_after_other(line_handler first, line_handler second) {
  return
      [first = std::move(first), second = std::move(second)](pid_t program, std::string_view line) {
        first(program, line);
        second(program, line);
      };
}

void check_children_ended_well(const program_outcome& outcome, std::size_t count) {
  std::size_t well = 0;
  std::istringstream lines(outcome.err);
  for (std::string line; std::getline(lines, line);) {
    INFO(line);
    CHECK(line.find("was killed by signal") == std::string::npos);
    if (line.find(" exited with code ") == std::string::npos) continue;
    CHECK(line.ends_with(" exited with code 0"));
    ++well;
  }
  CHECK(well == count);
}

bool wait_for_work(pid_t pid, std::chrono::milliseconds amount) {
  const auto ticks = amount.count() * sysconf(_SC_CLK_TCK) / 1000;
  const auto begin = ticks_of(pid);
  return wait_until([&] { return ticks_of(pid) - begin >= ticks; });
}

bool wait_for_lines(const std::filesystem::path& file, std::ptrdiff_t more) {
  const auto lines = [&file] {
    const auto bytes = bytes_of(file);
    return std::ranges::count(bytes, '\n');
  };
  const auto enough = lines() + more;
  return wait_until([&] { return lines() >= enough; });
}

bool wait_until_there(const std::filesystem::path& file) {
  return wait_until([&] { return std::filesystem::exists(file); });
}

bool wait_until_gone(const std::filesystem::path& file) {
  return wait_until([&] { return !std::filesystem::exists(file); });
}

std::chrono::duration<double> wait_for_file(const std::filesystem::path& file) {
  const auto begin = std::chrono::steady_clock::now();
  CHECK(wait_until_there(file));
  return std::chrono::steady_clock::now() - begin;
}

std::vector<pid_t> children_of(pid_t parent) {
  auto found = all_children_of(parent);
  std::erase_if(found, is_zygote);
  return found;
}

pid_t parent_of(pid_t child) {
  std::ifstream status("/proc/" + std::to_string(child) + "/status");
  for (std::string word; status >> word;)
    if (word == "PPid:") break;
  pid_t parent = 0;
  status >> parent;
  return parent;
}

pid_t zygote_of(pid_t keeper) {
  const auto all = all_children_of(keeper);
  const auto found = std::ranges::find_if(all, is_zygote);
  return found == all.end() ? 0 : *found;
}

void wait_until_stopped(pid_t child) {
  siginfo_t how{};
  REQUIRE(waitid(P_PID, static_cast<id_t>(child), &how, WSTOPPED) == 0);
}

bool wait_for_state(pid_t pid, char state) {
  return wait_until([&] { return state_of(pid) == state; });
}

bool wait_until_gone(pid_t pid) {
  const int descriptor = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (descriptor < 0) return true;
  pollfd end{.fd = descriptor, .events = POLLIN, .revents = 0};
  const bool gone = poll(&end, 1, 5000) == 1;
  close(descriptor);
  return gone;
}

namespace {

/// 0: the process has no thread of this name, or is gone.
pid_t thread_of(pid_t process, const std::string& name) {
  std::error_code gone;  // it or a thread may end while we look
  std::filesystem::directory_iterator tasks("/proc/" + std::to_string(process) + "/task", gone);
  for (; !gone && tasks != std::filesystem::directory_iterator(); tasks.increment(gone)) {
    std::ifstream file(tasks->path() / "comm");
    std::string own;
    if (std::getline(file, own) && own == name) return std::stoi(tasks->path().filename());
  }
  return 0;
}

/// Of a thread that is stopped.
bool is_in_system_call(pid_t thread) {
  std::ifstream file("/proc/" + std::to_string(thread) + "/syscall");
  std::string number;
  REQUIRE(file >> number);
  return number != "-1";
}

}  // namespace

pid_t process_with_thread(const std::vector<pid_t>& among, const std::string& name) {
  for (const auto process : among)
    if (thread_of(process, name) != 0) return process;
  FAIL("no process has a thread " << name);
  return 0;
}

held_up_end::held_up_end(pid_t process, const std::string& thread)
    : thread_(thread_of(process, thread)) {
  REQUIRE(thread_ != 0);
  REQUIRE(ptrace(PTRACE_SEIZE, thread_, nullptr, nullptr) == 0);
}

held_up_end::~held_up_end() {
  int how = 0;
  while (waitpid(thread_, &how, __WALL) == thread_ && !WIFEXITED(how) && !WIFSIGNALED(how)) {
  }
}

stopped_thread::stopped_thread(pid_t process, const std::string& name, bool computing) {
  const pid_t thread = thread_of(process, name);
  REQUIRE(thread != 0);
  REQUIRE(ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) == 0);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  for (;;) {
    REQUIRE(ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) == 0);
    int status = 0;
    REQUIRE(waitpid(thread, &status, __WALL) == thread);
    REQUIRE(WIFSTOPPED(status));
    if (!computing || !is_in_system_call(thread)) break;
    REQUIRE(std::chrono::steady_clock::now() < end);
    REQUIRE(ptrace(PTRACE_CONT, thread, nullptr, nullptr) == 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  reaper_ = std::thread([thread] {
    int how = 0;
    while (waitpid(thread, &how, __WALL) == thread && !WIFEXITED(how) && !WIFSIGNALED(how)) {
    }
  });
}

}  // namespace troupe::tests
