#include "tests/chaos/trial.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <regex>
#include <stdexcept>
#include <thread>

#include "cluster/launch/process_group.hpp"
#include "engine/state/safetensors.hpp"
#include "tests/bytes_of.hpp"

namespace troupe::chaos {
namespace {

namespace fs = std::filesystem;
using steady = std::chrono::steady_clock;

words pipeline(const std::string& stages, const std::string& link) {
  return split_words("--model resnet18 --data synthetic:3x32x32:10:64") +
         words{"--stages", stages} + split_words("--batch-size 8 --steps 4 --eval-every 2") +
         words{"--link", link} + split_words("--threads-per-stage 1 --verbose");
}

words server(const std::string& mode, const std::string& link) {
  return split_words("--model wide --data clicks:4:1000:2000") + words{"--mode", mode} +
         split_words("--batch-size 64 --steps 6 --eval-every 3") + words{"--link", link} +
         split_words("--threads-per-worker 1 --verbose");
}

const words two_stages{"program", "stage-0", "stage-1"};
const words three_stages{"program", "stage-0", "stage-1", "stage-2"};
const words of_server{"program", "shard-0", "shard-1", "worker-0", "worker-1"};

/// One run, as its thread of lines and its own thread see it.
struct watched {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<log_line> log;
  std::optional<cluster::child_exit> ended;
};

pid_t only_child() {
  const auto all = tests::children_of(::getpid());
  return all.empty() ? 0 : all.front();
}

/// Does what is to be done, each at its time, until the program has ended or `until` has come.
void intervene(watched& run, std::vector<intervention> pending, steady::time_point began,
               steady::time_point until) {
  const pid_t program = only_child();
  std::unique_lock lock(run.mutex);
  while (!run.ended && steady::now() < until) {
    auto wake = until;
    for (std::size_t i = 0; i < pending.size();) {
      const auto& next = pending[i];
      if (next.line > run.log.size()) {
        ++i;
        continue;
      }
      const seconds base = next.line == 0 ? seconds{0} : run.log[next.line - 1].at;
      const auto at = began + std::chrono::duration_cast<steady::duration>(base + next.delay);
      if (steady::now() < at) {
        wake = std::min(wake, at);
        ++i;
        continue;
      }
      if (program != 0) next.act(program, run.log);
      pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(i));
    }
    run.changed.wait_until(lock, wake);
  }
}

std::string file_name(const subject& what) {
  return fs::path(what.program).filename().string();
}

}  // namespace

const std::vector<subject>& subjects() {
  static const std::vector<subject> all{
      {"pipeline-shm", TROUPE_PIPELINE, pipeline("2", "shm"), two_stages, 122},
      {"pipeline-tcp", TROUPE_PIPELINE, pipeline("3", "tcp"), three_stages, 122},
      {"server-shm", TROUPE_SERVER, server("synchronous", "shm"), of_server, 8},
      {"server-tcp", TROUPE_SERVER, server("asynchronous", "tcp"), of_server, 8}};
  return all;
}

const subject& recovering_subject() {
  // Its layer throws in the ninth micro-batch that it is trained with.
  static const subject one{
      "pipeline-recovering",
      TROUPE_THROWING,
      split_words("--model throws_once --data synthetic:3x32x32:10:64 --stages 2 --batch-size 8 "
                  "--micro-batches 4 --steps 4 --eval-every 2 --optimizer adam --link tcp "
                  "--threads-per-stage 1 --data-node stage-1 --on-fault recover --verbose"),
      two_stages,
      62,
      "resnet_pipeline"};
  return one;
}

const subject& subject_of(const std::string& name) {
  if (name == recovering_subject().name) return recovering_subject();
  for (const auto& each : subjects())
    if (each.name == name) return each;
  throw std::invalid_argument("no subject " + name);
}

run_folder::run_folder(bool in_place) {
  for (const auto* each : {"out", "run", "tmp", "calls"}) fs::create_directory(folder_ / each);
  fs::permissions(folder_ / "run", fs::perms::owner_all);
  if (in_place) return;
  segments_.emplace(tests::shared_memory_folder());
}

std::map<std::string, std::string> run_folder::environment() const {
  const auto thrown = folder_ / "thrown";
  if (!segments_) return {{"TMPDIR", folder_ / "tmp"}, {"TROUPE_THROWN", thrown}};
  return {{"XDG_RUNTIME_DIR", folder_ / "run"},
          {"TMPDIR", folder_ / "tmp"},
          {"UCX_POSIX_DIR", segments_->path()},
          {"TROUPE_THROWN", thrown}};
}

std::vector<std::string> run_folder::left_behind() const {
  std::vector<std::string> found;
  std::vector<fs::path> places{folder_ / "run", folder_ / "tmp", folder_ / "out"};
  if (segments_) places.push_back(segments_->path());
  for (const auto& where : places)
    for (const auto& entry : fs::recursive_directory_iterator(where))
      if (!entry.is_directory() && entry.path() != weights()) found.push_back(entry.path());
  return found;
}

std::string outcome::text() const {
  std::string all;
  for (const auto& line : log) all.append(line.text).append("\n");
  return all;
}

std::string outcome::last_line() const {
  for (auto line = log.rbegin(); line != log.rend(); ++line)
    if (!line->text.empty()) return line->text;
  return "";
}

void take_in_orphans(outcome& ended) {
  auto until = steady::now() + std::chrono::seconds(5);
  for (;;) {
    siginfo_t how{};
    if (::waitid(P_ALL, 0, &how, WEXITED | WNOHANG) != 0) return;  // there is none
    if (how.si_pid == 0) {
      if (steady::now() > until) {
        for (const auto each : tests::children_of(::getpid())) {
          ::kill(each, SIGKILL);
          ++ended.left_running;
        }
        until += std::chrono::hours(1);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      continue;
    }
    ended.orphans.push_back(orphan_of(how));
  }
}

orphan orphan_of(const siginfo_t& how) {
  const bool by_exit = how.si_code == CLD_EXITED;
  return {how.si_pid, by_exit ? how.si_status : 0, by_exit ? 0 : how.si_status};
}

outcome run(const subject& what, const run_folder& folder,
            std::map<std::string, std::string> environment,
            const std::vector<intervention>& interventions, seconds bound) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  for (const auto& [name, value] : folder.environment()) environment.emplace(name, value);
  auto arguments = what.arguments;
  arguments.insert(arguments.end(), {"--save", folder.weights()});
  watched seen;
  const auto began = steady::now();
  const auto on_exit = [&](const cluster::child_exit& how) {
    const std::lock_guard lock(seen.mutex);
    seen.ended = how;
    seen.changed.notify_one();
  };
  const auto on_line = [&](std::string_view, cluster::output_stream, std::string_view line) {
    const std::lock_guard lock(seen.mutex);
    seen.log.push_back({steady::now() - began, std::string(line)});
    seen.changed.notify_one();
  };
  outcome result;
  {
    auto group = cluster::process_group::create({.on_exit = on_exit, .on_line = on_line});
    if (!group) throw std::runtime_error(group.error().text);
    const auto started = group->start({.name = what.name,
                                       .arguments = arguments,
                                       .environment = std::move(environment),
                                       .program = what.program});
    if (!started) throw std::runtime_error(started.error().text);
    intervene(seen, interventions, began,
              began + std::chrono::duration_cast<steady::duration>(bound));
    const std::lock_guard lock(seen.mutex);
    result.is_late = !seen.ended;
  }
  result.took = steady::now() - began;
  result.code = seen.ended ? seen.ended->code : 0;
  result.signal = seen.ended ? seen.ended->signal : 0;
  result.log = std::move(seen.log);
  take_in_orphans(result);
  return result;
}

std::vector<std::string> complaints(const subject& what, const outcome& ended,
                                    const std::set<int>& sent) {
  std::vector<std::string> found;
  if (ended.is_late) found.push_back("it had not ended at its bound");
  if (ended.left_running > 0)
    found.push_back(std::to_string(ended.left_running) + " processes were left running");
  if (ended.signal != 0 && !sent.contains(ended.signal) && !ended.is_late)
    found.push_back("the program was ended by signal " + std::to_string(ended.signal));
  // SIGKILL and SIGTERM are what a trainer ends its processes with, and the kernel after it.
  const auto is_sent = [&](int number) {
    return number == 0 || number == SIGKILL || number == SIGTERM || sent.contains(number);
  };
  for (const auto& each : ended.orphans)
    if (!is_sent(each.signal))
      found.push_back("process " + std::to_string(each.pid) + " was ended by signal " +
                      std::to_string(each.signal));
  static const std::regex killed("([a-z]+-[0-9]+) was killed by signal ([0-9]+)");
  static const std::regex exited("([a-z]+-[0-9]+) exited with code ([0-9]+)$");
  for (const auto& line : ended.log) {
    std::smatch match;
    if (std::regex_search(line.text, match, killed) && !is_sent(std::stoi(match[2])))
      found.push_back(line.text);
    if (std::regex_search(line.text, match, exited) && std::stoi(match[2]) > 2)
      found.push_back(line.text);
    for (const auto* bad :
         {"terminate called", "Assertion", "Caught signal", "pure virtual", "==== backtrace",
          "*** stack", "free(): ", "corrupted", "Sanitizer", "runtime error: "})
      if (line.text.find(bad) != std::string::npos) found.push_back(line.text);
  }
  if (ended.signal != 0 || ended.is_late) return found;
  const std::vector<int> documented{0, 1, 2, 3, 4, 129, 130, 143};
  if (std::ranges::find(documented, ended.code) == documented.end())
    found.push_back("no document has exit code " + std::to_string(ended.code));
  const bool is_failure = ended.code >= 1 && ended.code <= 4;
  const auto begin = (what.title.empty() ? file_name(what) : what.title) + ": ";
  if (is_failure && (!ended.last_line().starts_with(begin) || ended.last_line().size() < 24))
    found.push_back("the last line does not say what failed: " + ended.last_line());
  return found;
}

std::string fault_of_weights(const subject& what, const fs::path& file) {
  const auto loaded = engine::load_safetensors(file);
  if (!loaded) return "the weights cannot be read: " + loaded.error().text;
  if (loaded->size() == what.tensors) return "";
  return file.string() + " has " + std::to_string(loaded->size()) + " tensors";
}

std::string name_of_process(pid_t pid) {
  const auto all = tests::bytes_of("/proc/" + std::to_string(pid) + "/cmdline");
  const std::string flag = std::string("\0--node-name\0", 13);
  const auto at = all.find(flag);
  return at == std::string::npos ? "program" : std::string(all.c_str() + at + flag.size());
}

}  // namespace troupe::chaos
