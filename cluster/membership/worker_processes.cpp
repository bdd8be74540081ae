#include <chrono>
#include <mutex>
#include <utility>

#include "cluster/config/command_line.hpp"
#include "cluster/launch/process_group.hpp"
#include "cluster/membership/worker_group.hpp"
#include "messages/link/ucx_link.hpp"

namespace troupe::cluster {
namespace {

constexpr std::chrono::seconds end_in_order{10};
constexpr std::chrono::seconds grace{2};

/// What the children's ends were, shared with the process group's thread.
struct ends {
  std::mutex mutex;
  bool expected = false;  // told to end: what comes now is no failure
  std::optional<std::string> failure;

  void note(const child_exit& ended) {
    const std::scoped_lock lock(mutex);
    if (!expected && !failure) failure = describe(ended);
  }
};

class worker_processes final : public workers {
 public:
  worker_processes(transport link, bool verbose, std::shared_ptr<ends> ended, process_group group)
      : link_(link), verbose_(verbose), ends_(std::move(ended)), group_(std::move(group)) {}

  actors::link_factory trainer_link() override { return ucx_link_factory(link_); }

  result<void> start(const std::string& name, const std::string& trainer) override {
    child_spec child{.name = name, .arguments = {}, .environment = {}};
    child.arguments = to_arguments(node_options{trainer, name, link_, verbose_});
    return group_.start(child);
  }

  std::optional<std::string> failure() const override {
    const std::scoped_lock lock(ends_->mutex);
    return ends_->failure;
  }

  void join(bool in_order) override {
    {
      const std::scoped_lock lock(ends_->mutex);
      ends_->expected = true;
    }
    const auto patience = in_order && !failure() ? end_in_order : std::chrono::seconds{0};
    if (!group_.wait(patience)) group_.terminate_all(grace);
  }

  void kill() override { group_.kill(); }
  void suspend() override { group_.suspend(); }
  void resume() override { group_.resume(); }

 private:
  transport link_;
  bool verbose_;
  std::shared_ptr<ends> ends_;
  process_group group_;
};

}  // namespace

result<std::unique_ptr<workers>> make_worker_processes(transport link, bool verbose) {
  auto ended = std::make_shared<ends>();
  auto group = process_group::create(
      {.on_exit = [ended](const child_exit& child) { ended->note(child); }, .on_line = {}});
  if (!group) return tl::unexpected(group.error());
  return std::make_unique<worker_processes>(link, verbose, std::move(ended), std::move(*group));
}

actors::link_factory ucx_link_factory(transport choice) {
  messages::ucx_options options;
  options.transport =
      choice == transport::tcp ? messages::ucx_transport::tcp : messages::ucx_transport::shm;
  return [options](messages::link_events events) {
    return messages::make_ucx_link(options, std::move(events));
  };
}

}  // namespace troupe::cluster
