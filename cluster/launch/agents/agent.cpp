#include "cluster/launch/agents/agent.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>

#include "actors/base/deadlines.hpp"
#include "cluster/hosts/host_addresses.hpp"
#include "cluster/launch/agents/agent_core.hpp"
#include "cluster/launch/agents/munge.hpp"
#include "cluster/launch/agents/program_build.hpp"
#include "cluster/launch/agents/secret_pipe.hpp"
#include "cluster/launch/agents/stream_seal.hpp"
#include "cluster/launch/agents/wall_clock.hpp"
#include "cluster/launch/line_splitter.hpp"
#include "cluster/launch/open_files.hpp"
#include "cluster/launch/process_group.hpp"
#include "messages/base/host_name.hpp"

namespace troupe::cluster {
namespace {

using clock = std::chrono::steady_clock;

constexpr std::size_t most_news = 1024;              // from processes, before they must wait
constexpr std::size_t most_unsent_bytes = 1U << 20;  // to the launcher, before they must wait

struct written {
  std::string name;
  output_stream stream;
  std::string text;
};
struct start_outcome {
  std::string name;
  result<void> how;
};
using process_news = std::variant<written, child_exit, start_outcome>;

/// What the processes' own thread hands to the agent's. Bounded: a process that writes faster than
/// the launcher reads has to wait, but not while the agent waits for that thread.
class news_queue {
 public:
  explicit news_queue(int wake) : wake_(wake) {}

  void push_line(written what) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return open_ || (!full_ && news_.size() < most_news); });
      news_.emplace_back(std::move(what));
    }
    wake();
  }
  /// An end or the outcome of a start, which no process can have too many of.
  void push(process_news what) {
    {
      const std::lock_guard lock(mutex_);
      news_.push_back(std::move(what));
    }
    wake();
  }
  /// Lets everything in, while the other thread is waited for and from the agent's end on.
  void set_open(bool open) {
    const std::lock_guard lock(mutex_);
    open_ = open;
    changed_.notify_all();
  }
  /// `full`: the launcher has not read what there is.
  std::vector<process_news> take(bool full) {
    const std::lock_guard lock(mutex_);
    full_ = full;
    changed_.notify_all();
    return full ? std::vector<process_news>() : std::exchange(news_, {});
  }

 private:
  void wake() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake_, &one, sizeof one);
  }

  const int wake_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<process_news> news_;
  bool open_ = false;
  bool full_ = false;
};

events::hello about_us(std::string build) {
  const auto pages = static_cast<std::uint64_t>(std::max(0L, ::sysconf(_SC_PHYS_PAGES)));
  const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return {.build = std::move(build),
          .host = host_name(),
          .cores = std::thread::hardware_concurrency(),
          .memory_bytes = pages * page_bytes,
          .clock_ns = wall_clock_ns(),
          .addresses = interface_addresses()};
}

/// Why the agent ends, on standard error.
void say(const std::string& why) {
  std::fprintf(stderr, "%s%s\n", agent_mark.data(), why.c_str());
}

int refuse(const std::string& why) {
  say(why);
  return 1;
}

/// The agent: a core, its processes and the two streams. One thread.
class agent {
 public:
  agent(events::hello self, descriptor wake, descriptor signals, std::shared_ptr<news_queue> news,
        process_group group, std::unique_ptr<stream_seal> seal)
      : seal_(std::move(seal)),
        wake_(std::move(wake)),
        signals_(std::move(signals)),
        news_(std::move(news)),
        group_(std::move(group)),
        core_(std::move(self), clock::now()) {}
  agent(const agent&) = delete;
  agent& operator=(const agent&) = delete;
  ~agent() { news_->set_open(true); }  // before the group waits for its thread

  int run() {
    unsent_ = magic_line() + "\n";
    if (seal_) {
      const auto opening = seal_->opening();
      if (!opening) return refuse(opening.error().text);
      unsent_ += *opening;
    }
    perform(core_.begin());
    flush();
    while (!left_) {
      wait();
      for (const auto& each : news_->take(unsent_.size() > most_unsent_bytes && !output_closed_))
        perform(heard(each));
      perform(core_.tick(clock::now()));
      flush();
    }
    say_the_rest();
    return code_;
  }

 private:
  void wait() {
    const int input = input_closed_ ? -1 : STDIN_FILENO;
    const int output = unsent_.empty() || output_closed_ ? -1 : STDOUT_FILENO;
    std::array<pollfd, 4> ready{{{input, POLLIN, 0},
                                 {output, POLLOUT, 0},
                                 {wake_.get(), POLLIN, 0},
                                 {signals_.get(), POLLIN, 0}}};
    if (::poll(ready.data(), ready.size(), static_cast<int>(core_.interval().count())) <= 0) return;
    if (ready[0].revents != 0) read_orders();
    if (ready[2].revents != 0) {
      std::uint64_t count = 0;
      [[maybe_unused]] const auto taken = ::read(wake_.get(), &count, sizeof count);
    }
    if (ready[3].revents != 0) {
      signalfd_siginfo which{};
      [[maybe_unused]] const auto taken = ::read(signals_.get(), &which, sizeof which);
      signalled(static_cast<int>(which.ssi_signo));
    }
  }

  void signalled(int number) {
    if (number == SIGUSR1 || number == SIGUSR2)
      perform(core_.signalled(number));
    else if (seal_ && number == SIGTERM)
      perform(core_.asked_to_end(clock::now()));
    else
      perform(core_.asked_by(number));
  }

  void read_order(std::string_view line) {
    if (!seal_) return perform(core_.heard(line, clock::now()));
    auto order = seal_->take(line);
    if (!order) return perform(core_.cut_off("the launcher's stream has " + order.error().text));
    unsent_ += order->answer;
    if (!order->clear) return;
    perform(core_.heard(*order->clear, clock::now()));
    forget(*order->clear);
  }

  void read_orders() {
    std::array<char, 16 << 10> bytes;
    const auto count = ::read(STDIN_FILENO, bytes.data(), bytes.size());
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (count <= 0) {
      input_closed_ = true;
      return perform(core_.cut_off("the launcher's stream has closed"));
    }
    orders_.feed({bytes.data(), static_cast<std::size_t>(count)},
                 [this](std::string_view line) { read_order(line); });
    explicit_bzero(bytes.data(), bytes.size());  // it may have been a secret
  }

  agent_core::effects heard(const process_news& news) {
    if (const auto* line = std::get_if<written>(&news))
      return core_.wrote(line->name, line->stream, line->text);
    if (const auto* begun = std::get_if<start_outcome>(&news))
      return begun->how ? core_.started(begun->name)
                        : core_.refused(begun->name, begun->how.error().text);
    return core_.ended(std::get<child_exit>(news));
  }

  void perform(const agent_core::effects& what) {
    for (const auto& effect : what) {
      if (const auto* tell = std::get_if<agent_core::tell>(&effect)) {
        unsent_ += seal_ ? seal_->seal(encode(tell->what)) : encode(tell->what) + "\n";
      } else if (const auto* launch = std::get_if<agent_core::launch>(&effect)) {
        perform(start(launch->what));
      } else if (const auto* doomed = std::get_if<agent_core::kill>(&effect)) {
        group_.kill(doomed->name);
      } else if (std::holds_alternative<agent_core::suspend_all>(effect)) {
        while_open([this] { group_.suspend(); });
      } else if (std::holds_alternative<agent_core::resume_all>(effect)) {
        while_open([this] { group_.resume(); });
      } else if (const auto* end = std::get_if<agent_core::end_all>(&effect)) {
        news_->set_open(true);  // its thread must hear it
        group_.stop(end->grace);
      } else if (const auto* leave = std::get_if<agent_core::leave>(&effect)) {
        left_ = true;
        code_ = leave->why.empty() ? 0 : 1;
        if (!leave->why.empty()) say(leave->why);
      }
    }
  }

  /// On the processes' thread, which may take seconds: orders are read meanwhile. The secret's pipe
  /// is open until then.
  agent_core::effects start(const orders::start& order) {
    auto secret =
        from_digits(order.secret).and_then([](const auto& read) { return secret_pipe(read); });
    if (!secret) return core_.refused(order.name, secret.error().text);
    child_spec child{
        .name = order.name,
        .arguments = order.arguments,
        .environment = order.environment,
        .handed_over = secret->get(),
        .working_folder = order.working_folder,
        .joins = std::ranges::find(order.arguments, "--join") != order.arguments.end()};
    child.environment[started_by] = std::to_string(::getpid());
    group_.begin(std::move(child),
                 [news = news_, name = order.name,
                  held = std::make_shared<descriptor>(std::move(*secret))](result<void> how) {
                   news->push(start_outcome{name, std::move(how)});
                 });
    return {};
  }

  /// For what waits for the processes' thread.
  template <class Action>
  void while_open(const Action& action) {
    news_->set_open(true);
    action();
    news_->set_open(false);
  }

  void say_the_rest() {
    const auto end = clock::now() + actors::usual_deadlines.agent_last_words;
    for (flush(); !unsent_.empty() && !output_closed_ && clock::now() < end; flush()) {
      pollfd ready{STDOUT_FILENO, POLLOUT, 0};
      ::poll(&ready, 1, 100);
    }
  }

  void flush() {
    while (!unsent_.empty() && !output_closed_) {
      const auto count = ::write(STDOUT_FILENO, unsent_.data(), unsent_.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) return;
      if (count < 0) {
        output_closed_ = true;
        return perform(core_.cut_off("the launcher reads no more"));
      }
      unsent_.erase(0, static_cast<std::size_t>(count));
    }
  }

  const std::unique_ptr<stream_seal> seal_;  // or none
  descriptor wake_;                          // eventfd
  descriptor signals_;                       // signalfd
  std::shared_ptr<news_queue> news_;
  process_group group_;
  agent_core core_;
  line_splitter orders_;
  std::string unsent_;
  bool input_closed_ = false;
  bool output_closed_ = false;
  bool left_ = false;
  int code_ = 0;
};

/// A descriptor at which the signals are read that ask a process to end, or are for the launcher;
/// no thread is interrupted.
descriptor signals_to_read() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : {SIGTERM, SIGHUP, SIGINT, SIGUSR1, SIGUSR2}) ::sigaddset(&set, number);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  return descriptor(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

}  // namespace

int run_agent(std::string_view way) {
  std::unique_ptr<stream_seal> seal;
  if (way == munge_word) {
    auto witness = munge_witness();
    if (!witness) return refuse(witness.error().text);
    seal = std::make_unique<stream_seal>(stream_seal::end::agent, std::move(*witness));
  } else if (way == sealed_word) {
    seal = std::make_unique<stream_seal>(stream_seal::end::agent, stream_witness{});
  } else if (!way.empty()) {
    return refuse("\"" + std::string(way) + "\" is no way to carry its stream");
  }
  if (auto room = allow_open_files(own_files); !room) return refuse(room.error().text);
  descriptor signals = signals_to_read();
  descriptor wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!signals || !wake) return refuse("no descriptor is left");
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO})
    ::fcntl(stream, F_SETFL, ::fcntl(stream, F_GETFL) | O_NONBLOCK);
  auto build = program_build();
  if (!build) return refuse(build.error().text);
  const auto news = std::make_shared<news_queue>(wake.get());
  auto group = process_group::create(
      {.on_exit = [news](const child_exit& how) { news->push(how); },
       .on_line =
           [news](std::string_view name, output_stream stream, std::string_view line) {
             news->push_line({std::string(name), stream, std::string(line)});
           }});
  if (!group) return refuse(group.error().text);
  return agent(about_us(std::move(*build)), std::move(wake), std::move(signals), news,
               std::move(*group), std::move(seal))
      .run();
}

}  // namespace troupe::cluster
