#include "tests/multiprocess/node_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <caf/all.hpp>
#include <catch2/catch_test_macros.hpp>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace troupe::tests {
namespace {

constexpr const char* role_variable = "TROUPE_NODE_CHILD";
constexpr int lost_parent = 5;

std::string role_of(const node_ways& ways, int pipe) {
  std::ostringstream text;
  text << pipe << ' ' << static_cast<int>(ways.transport) << ' ' << ways.ask_system << ' '
       << ways.listen << ' ' << ways.device;
  return text.str();
}

std::pair<node_ways, int> read_role(const std::string& text) {
  std::istringstream in(text);
  node_ways ways;
  int pipe = -1;
  int transport = 0;
  in >> pipe >> transport >> ways.ask_system >> ways.listen >> ways.device;
  ways.transport = static_cast<messages::link_transport>(transport);
  return {ways, pipe};
}

void compute_for(std::chrono::seconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  volatile double sum = 0;
  while (std::chrono::steady_clock::now() < end) {
    for (int i = 0; i < 100000; ++i) sum = sum + 1.0 / (i + 1);
  }
}

void publish_all(member& here) {
  const auto publish = [&](const char* name, const caf::actor& actor) {
    here.node().publish(name, caf::actor_cast<caf::strong_actor_ptr>(actor));
  };
  auto& system = here.system();
  publish("adder",
          system.spawn([]() -> caf::behavior { return {[](int x, int y) { return x + y; }}; }));
  publish("mute", system.spawn([](caf::event_based_actor* self) -> caf::behavior {
    return {[self](int) { return self->make_response_promise<int>(); }};
  }));
  publish("worker", system.spawn([]() -> caf::behavior {
    return {[](int seconds) {
      compute_for(std::chrono::seconds(seconds));
      return seconds;
    }};
  }));
  publish("ender", system.spawn([]() -> caf::behavior { return {[](int code) { _exit(code); }}; }));
  publish("linker", system.spawn([](caf::event_based_actor* self) -> caf::behavior {
    return {[self](const caf::actor& other) {
      self->link_to(other);
      return 0;
    }};
  }));
}

std::string own_path() {
  return std::filesystem::read_symlink("/proc/self/exe");
}

}  // namespace

member::member(const std::string& name, const node_ways& ways) : system_(config_) {
  types_.add<caf::actor>("actor");
  messages::link_options options{.transport = ways.transport};
  if (!ways.device.empty()) {
    constexpr std::string_view shared = "what both processes of this test know";
    options.settings.emplace_back("NET_DEVICES", ways.device);
    options.beyond_loopback = true;
    options.secret = messages::cluster_secret(std::as_bytes(std::span(shared)));
  }
  actors::node_settings settings{.name = name, .listen = ways.listen};
  settings.liveness.ask_system = ways.ask_system;
  settings.on_node_down = [this](const std::string&, const error& why) {
    if (!std::exchange(lost_, true)) loss_.set_value(why);
  };
  auto started = actors::node::start(system_, types_, settings, [options](auto events) {
    return messages::make_link(options, std::move(events));
  });
  if (!started) throw std::runtime_error(started.error().text);
  node_ = std::move(*started);
}

node_process::node_process(const node_ways& ways, const std::vector<std::string>& launcher) {
  std::array<int, 2> fds{};
  if (pipe(fds.data()) != 0) throw std::runtime_error("pipe failed");
  fcntl(fds[0], F_SETFD, FD_CLOEXEC);
  const std::string role = std::string(role_variable) + "=" + role_of(ways, fds[1]);
  std::vector<char*> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  environment.push_back(const_cast<char*>(role.c_str()));
  environment.push_back(nullptr);
  std::vector<std::string> words = launcher;
  words.insert(words.end(), {own_path(), "[.child]"});
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  const int failed = posix_spawnp(&pid_, words.front().c_str(), &actions, nullptr, arguments.data(),
                                  environment.data());
  posix_spawn_file_actions_destroy(&actions);
  close(fds[1]);
  pipe_ = fds[0];
  if (failed != 0) throw std::runtime_error("spawn failed");
  address_ = last_words(std::chrono::seconds(20));
  if (address_.empty()) throw std::runtime_error("no child");
}

node_process::~node_process() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(pipe_);
}

void node_process::signal(int number) const {
  kill(pid_, number);
}

std::string node_process::last_words(std::chrono::milliseconds timeout) const {
  std::array<char, 1024> text{};
  pollfd ready{.fd = pipe_, .events = POLLIN, .revents = 0};
  if (poll(&ready, 1, static_cast<int>(timeout.count())) <= 0) return "";
  return read(pipe_, text.data(), text.size() - 1) > 0 ? text.data() : "";
}

int node_process::wait() {
  int status = 0;
  waitpid(std::exchange(pid_, -1), &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST_CASE("be the other process", "[.child]") {
  const char* const role = std::getenv(role_variable);
  REQUIRE(role != nullptr);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto [ways, pipe] = read_role(role);
  const auto say = [out = pipe](const std::string& text) {
    [[maybe_unused]] const auto said = write(out, text.c_str(), text.size() + 1);
  };
  member here("child", ways);
  auto loss = here.loss();
  publish_all(here);
  say(here.node().address());
  say(loss.get().text);
  _exit(lost_parent);
}

}  // namespace troupe::tests
