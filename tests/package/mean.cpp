// An actor and messages of one's own, asked from another process: starts itself a second time,
// where an actor keeps the mean of the tensors that it is sent, and asks that. `mean own` does so
// over a transport of one's own.

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <sys/wait.h>
#include <unistd.h>

#include <caf/event_based_actor.hpp>
#include <caf/stateful_actor.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>

#include "actors/futures/requester.hpp"
#include "actors/messages/declaration.hpp"
#include "actors/remote/node.hpp"
#include "actors/system.hpp"
#include "actors/wire/message_registry.hpp"
#include "messages/link/link_options.hpp"
#include "socket_link.hpp"

namespace mean {

using namespace troupe;
using namespace std::chrono_literals;

struct add_sample {
  static constexpr auto declared = actors::travels("add_sample");
  at::Tensor sample;

  static void fields(auto& self, auto& f) { f(self.sample); }
};

struct mean_so_far {
  static constexpr auto declared = actors::travels("mean_so_far");
  at::Tensor value;
  std::uint64_t count = 0;

  static void fields(auto& self, auto& f) { f(self.value, self.count); }
};

using messages = actors::message_list<add_sample, mean_so_far>;

caf::behavior keep_mean(caf::stateful_actor<mean_so_far>* self) {
  return {[self](const add_sample& what) {
    auto& [value, count] = self->state;
    ++count;
    value = count == 1 ? what.sample : value + (what.sample - value) / static_cast<double>(count);
    return self->state;
  }};
}

/// What makes the links: over shared memory, or for "own" over our sockets.
actors::link_factory link_factory_of(const std::string& way) {
  if (way == "own")
    return [](troupe::messages::link_events events) {
      return own::make_socket_link(std::move(events));
    };
  return [](troupe::messages::link_events events) {
    return troupe::messages::make_link({.transport = troupe::messages::link_transport::shm},
                                       std::move(events));
  };
}

/// What each of the two processes has.
struct process {
  actors::message_registry types;
  actors::system_config config;
  caf::actor_system system{config};
  std::promise<error> other_is_gone;
  std::unique_ptr<actors::node> node;

  process(const std::string& name, const std::string& way) {
    types.add(messages{});
    auto started = actors::node::start(
        system, types,
        {.name = name,
         .on_node_down = [this](const std::string&,
                                const error& why) { other_is_gone.set_value(why); }},
        link_factory_of(way));
    if (!started) std::puts(started.error().text.c_str()), std::exit(1);
    node = std::move(*started);
  }
};

int serve(const std::string& way, const std::string& address) {
  process here("keeper", way);
  here.node->publish("mean", caf::actor_cast<caf::strong_actor_ptr>(here.system.spawn(keep_mean)));
  if (auto joined = here.node->join(address, 10s); !joined)
    return std::puts(joined.error().text.c_str()), 1;
  here.other_is_gone.get_future().wait();
  return 0;
}

int ask(const char* program, const std::string& way) {
  process here("asker", way);
  const std::string address = here.node->address();
  const pid_t child = fork();
  if (child == 0) {
    execl("/proc/self/exe", program, way.c_str(), address.c_str(), nullptr);
    _exit(127);
  }
  if (!here.node->wait_for("keeper", 10s)) return std::puts("the keeper has not joined"), 1;
  const auto keeper = here.node->find("keeper", "mean", 10s);
  if (!keeper) return std::puts(keeper.error().text.c_str()), 1;
  {
    actors::requester ask(here.system);
    for (int i = 1; i <= 4; ++i) {
      const auto answer =
          ask.request<mean_so_far>(*keeper, add_sample{at::full({1000}, double(i))}, 10s);
      const auto& mean = answer.get();
      if (!mean) return std::puts(mean.error().text.c_str()), 1;
      std::printf("after %d: %.2f\n", int(mean->count), mean->value.mean().item<double>());
    }
  }
  here.node.reset();  // says goodbye: the keeper ends
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

}  // namespace mean

int main(int argc, char** argv) {
  const std::string way = argc > 1 ? argv[1] : "shm";
  return argc > 2 ? mean::serve(way, argv[2]) : mean::ask(argv[0], way);
}
