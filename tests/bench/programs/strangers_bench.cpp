// Measures what strangers cost a training run: the CPU seconds of a step of two stage processes and
// their trainer over sealed tcp, in turn left alone, while strangers connect to other ports of the
// machine, and while they connect to the run's. The second is what it costs that they are there:
// they use the same cores and caches. The third less the second is what it costs that they come
// here, and by how much the run's links use more is what the run does about them.
//
//   strangers_bench [--rate N] [--says silent,garbage,..] [--rounds R] [--steps S] [--json]
#include <poll.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster/launch/process_group.hpp"
#include "messages/link/door/address.hpp"
#include "messages/link/door/listener.hpp"
#include "tests/bench/programs/crowd.hpp"
#include "tests/bench/programs/figures.hpp"
#include "tests/chaos/trial.hpp"
#include "tests/flags.hpp"
#include "tests/multiprocess/program.hpp"
#include "tests/process_sockets.hpp"

namespace {

using namespace troupe;
using namespace troupe::bench;

[[noreturn]] void die(const std::string& text) {
  std::fprintf(stderr, "strangers_bench: %s\n", text.c_str());
  std::exit(1);
}

/// CPU seconds that a process has used, of all its threads, those that have ended too.
double cpu_seconds(pid_t process) {
  clockid_t clock{};
  timespec used{};
  if (::clock_getcpuclockid(process, &clock) != 0 || ::clock_gettime(clock, &used) != 0) {
    die("the run has ended");
  }
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
}

/// CPU seconds of a process's link, whose thread alone meets strangers.
double link_seconds(pid_t process) {
  const std::string threads = "/proc/" + std::to_string(process) + "/task";
  double out = 0;
  for (const auto& each : std::filesystem::directory_iterator(threads)) {
    std::string name;
    std::ifstream(each.path() / "comm") >> name;
    std::uint64_t nanoseconds = 0;
    std::ifstream(each.path() / "schedstat") >> nanoseconds;
    if (name == "troupe-link") out += static_cast<double>(nanoseconds) / 1e9;
  }
  return out;
}

/// A training run of two stages that goes on until this object ends.
class training {
 public:
  explicit training(const std::string& program) : steps_file_(folder_ / "steps") {
    std::ofstream{steps_file_};
    lines_.open(steps_file_);
    watch_ = descriptor(::inotify_init1(IN_CLOEXEC));
    if (::inotify_add_watch(watch_.get(), steps_file_.c_str(), IN_MODIFY) < 0) die("no inotify");
    auto made = cluster::process_group::create({.on_exit = {}, .on_line = {}});
    if (!made) die(made.error().text);
    group_.emplace(std::move(*made));
    const auto started = group_->start(
        {.name = "trainer", .arguments = arguments(), .environment = {}, .program = program});
    if (!started) die(started.error().text);
    await_steps(3);  // the first ones are slower
    processes_ = tests::children_of(::getpid());
    const auto stages = tests::children_of(processes_.at(0));
    processes_.insert(processes_.end(), stages.begin(), stages.end());
  }

  /// The trainer and its stages.
  [[nodiscard]] const std::vector<pid_t>& processes() const { return processes_; }

  [[nodiscard]] std::vector<int> ports() const {
    std::vector<int> out;
    for (const pid_t each : processes_)
      for (const int port : messages::testing::ports_of(each, {"tcp", "tcp6"})) out.push_back(port);
    return out;
  }

  /// Waits until so many more steps are over.
  void await_steps(int count) {
    for (int left = count; left > 0;) {
      pollfd ready{watch_.get(), POLLIN, 0};
      if (::poll(&ready, 1, 60'000) != 1) die("no step ended in a minute");
      alignas(inotify_event) char news[4096];
      if (::read(watch_.get(), news, sizeof(news)) < 0) die("inotify cannot be read");
      for (std::string line; std::getline(lines_, line);) --left;
      lines_.clear();
    }
  }

 private:
  [[nodiscard]] std::vector<std::string> arguments() const {
    return {"--model",
            "resnet18",
            "--data",
            "synthetic:3x32x32:10:64",
            "--stages",
            "2",
            "--batch-size",
            "8",
            "--steps",
            "1000000",
            "--threads-per-stage",
            "1",
            "--link",
            "tcp",
            "--no-eval",
            "--no-progress",
            "--json",
            steps_file_};
  }

  tests::scratch_folder folder_;
  const std::string steps_file_;
  std::ifstream lines_;
  descriptor watch_;
  std::optional<cluster::process_group> group_;
  std::vector<pid_t> processes_;
};

struct wishes {
  double rate = 1000;
  std::vector<std::string> says = {"silent", "byte", "garbage", "ucx", "half", "hello"};
  int rounds = 6;
  int steps = 12;
  bool json = false;
};

/// A stretch of some steps, in seconds.
struct stretch {
  std::vector<double> cpu;  // of each process
  double links = 0;         // of all processes' links
  double wall = 0;
  long made = 0;  // connections

  [[nodiscard]] double cpu_of_all() const {
    double sum = 0;
    for (const double each : cpu) sum += each;
    return sum;
  }
};

stretch measure(training& run, crowd& strangers, crowd::goes where, int steps) {
  strangers.send(where);
  run.await_steps(2);  // what the stretch before has left is cleared away
  stretch out;
  const long made = strangers.made();
  for (const pid_t each : run.processes()) {
    out.cpu.push_back(-cpu_seconds(each));
    out.links -= link_seconds(each);
  }
  const stopwatch watch;
  run.await_steps(steps);
  out.wall = watch.seconds();
  for (std::size_t i = 0; i < out.cpu.size(); ++i) {
    out.cpu[i] += cpu_seconds(run.processes()[i]);
    out.links += link_seconds(run.processes()[i]);
  }
  out.made = strangers.made() - made;
  return out;
}

double median(const std::vector<double>& values) {
  return quantile(values, 0.5);
}

template <class Of>
std::vector<double> each_of(const std::vector<stretch>& stretches, Of of) {
  std::vector<double> out;
  out.reserve(stretches.size());
  for (const stretch& one : stretches) out.push_back(of(one));
  return out;
}

/// Stretches that took turns.
struct stretches {
  std::vector<stretch> alone, beside, beset;
};

/// Prints what they come to, each round for itself.
void tell(const wishes& wish, const training& run, const stretches& all) {
  const auto& [alone, beside, beset] = all;
  const figures out(wish.json);
  const auto ms_a_step = [&](const stretch& one) { return 1e3 * one.cpu_of_all() / wish.steps; };
  out.add("alone", median(each_of(alone, ms_a_step)), "ms");
  out.add("elsewhere", median(each_of(beside, ms_a_step)), "ms");
  out.add("strangers", median(each_of(beset, ms_a_step)), "ms");
  for (std::size_t i = 0; i < run.processes().size(); ++i) {
    const auto own = [&](const stretch& one) { return 1e3 * one.cpu[i] / wish.steps; };
    const std::string name = chaos::name_of_process(run.processes()[i]);
    out.add(name + ".alone", median(each_of(alone, own)), "ms");
    out.add(name + ".strangers", median(each_of(beset, own)), "ms");
  }
  std::vector<double> there, more, in_links, each;
  for (std::size_t i = 0; i < alone.size(); ++i) {
    const double cost = beset[i].cpu_of_all() - beside[i].cpu_of_all();
    there.push_back(100 * (beside[i].cpu_of_all() / alone[i].cpu_of_all() - 1));
    more.push_back(100 * cost / alone[i].cpu_of_all());
    const double met = beset[i].links - beside[i].links;
    in_links.push_back(100 * met / alone[i].cpu_of_all());
    each.push_back(1e6 * met / static_cast<double>(beset[i].made));
  }
  out.add("connections",
          median(each_of(
              beset, [](const stretch& one) { return static_cast<double>(one.made) / one.wall; })),
          "1/s");
  out.add("there", median(there), "%");
  out.add("more", median(more), "%");
  out.add("in_links", median(in_links), "%");
  out.add("a_connection", median(each), "us");
}

std::vector<saying> chosen(const wishes& wish) {
  std::vector<saying> out;
  const auto known = sayings_of_strangers();
  for (const std::string& name : wish.says) {
    const auto found = std::ranges::find(known, name, &saying::name);
    if (found == known.end()) die("strangers do not know how to say " + name);
    out.push_back(*found);
  }
  return out;
}

/// Ports at which the system drops all that is no hello, as at those of a run that is beset.
class decoys {
 public:
  explicit decoys(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto where = messages::door::resolve("127.0.0.1:0", true);
      if (!where) die(where.error().text);
      auto made = messages::door::listener::open(*where, "127.0.0.1:0");
      if (!made) die(made.error().text);
      if (!made->screen(true)) die("the system has no filters for sockets");
      const std::string& text = made->text();
      ports_.push_back(std::stoi(text.substr(text.rfind(':') + 1)));
      listeners_.push_back(std::move(*made));
    }
  }

  [[nodiscard]] const std::vector<int>& ports() const { return ports_; }

 private:
  std::vector<messages::door::listener> listeners_;
  std::vector<int> ports_;
};

int run_bench(const wishes& wish, const std::string& program) {
  training run(program);
  const decoys others(run.ports().size());
  crowd strangers(run.ports(), others.ports(), chosen(wish), wish.rate);
  stretches all;
  using goes = crowd::goes;
  for (int round = 0; round < wish.rounds; ++round) {
    // In this order and the other one in turn, so that a drift falls on all.
    std::array order{goes::nowhere, goes::elsewhere, goes::here};
    if (round % 2 != 0) std::ranges::reverse(order);
    for (const goes where : order) {
      auto& kept = where == goes::nowhere     ? all.alone
                   : where == goes::elsewhere ? all.beside
                                              : all.beset;
      kept.push_back(measure(run, strangers, where, wish.steps));
    }
  }
  tell(wish, run, all);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  troupe::tests::flags line("Measures what strangers cost a training run.");
  wishes wish;
  line.number("--rate", wish.rate, "connections a second", std::numeric_limits<double>::min());
  line.texts("--says", wish.says, "what strangers say, in turn");
  line.number("--rounds", wish.rounds, "stretches of each kind", 1);
  line.number("--steps", wish.steps, "of a stretch", 1);
  line.flag("--json", wish.json, "One JSON object a line");
  if (const auto end = line.read(argc, argv)) return *end;
  return run_bench(wish, chaos::subject_of("pipeline-tcp").program);
}
