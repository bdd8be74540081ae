#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/collective/nccl/device.hpp"
#include "engine/collective/port.hpp"
#include "messages/link/ucx/memory_channel.hpp"

namespace troupe::actors {

/// How long a ucx_port waits.
struct ucx_patience {
  std::chrono::milliseconds join{60'000};        ///< For the other end.
  std::chrono::milliseconds operation{600'000};  ///< From a call of `submit` to its end.
  /// For copies under way into memory of this process, once the port is given up.
  std::chrono::milliseconds copies{1'000};
};

/// A tensor's memory as UCX is to see it, until this is released; and whether it is written.
using held_memory = std::shared_ptr<void>;
using holding = std::function<held_memory(const at::Tensor& whose, bool is_written)>;

struct ucx_terms {
  std::string name;  ///< For messages: "activations from stage-0 to stage-1".
  std::shared_ptr<const messages::ucx::library> library;
  messages::ucx::memory_kind memory = messages::ucx::memory_kind::cuda;
  std::shared_ptr<engine::nccl::device> on = {};  ///< Its streams are waited for; null: the CPU.
  holding hold = {};                              ///< Empty: where it lies.
  std::vector<std::byte> sender = {};  ///< Whom this receives from; empty: this is the sender.
  ucx_patience waits = {};
  /// Makes its channel; empty: by the library.
  std::function<result<std::unique_ptr<messages::ucx::memory_channel>>()> channel = {};
};

/// Rank 0 sends to rank 1, in another process of the machine, by UCX. Owns a thread that alone
/// calls UCX and waits for the device: unlike NCCL it puts nothing on the device that waits for the
/// other end, so neither end has to begin first.
class ucx_port final : public engine::collective_port {
 public:
  /// Errors: io_failed, address_unavailable, handler_failed. Throws std::system_error where no
  /// thread can be started.
  [[nodiscard]] static result<std::shared_ptr<ucx_port>> open(ucx_terms how);
  explicit ucx_port(ucx_terms how);
  ucx_port(const ucx_port&) = delete;
  ucx_port& operator=(const ucx_port&) = delete;
  ~ucx_port() override;

  /// For messages, from now on; before anything is submitted.
  void rename(std::string name) { name_ = std::move(name); }
  /// What the receiver needs of the sender.
  [[nodiscard]] const std::vector<std::byte>& address() const noexcept { return address_; }

  [[nodiscard]] std::uint32_t rank() const noexcept override { return how_.sender.empty() ? 0 : 1; }
  [[nodiscard]] std::uint32_t ranks() const noexcept override { return 2; }
  using collective_port::submit;
  /// Rank 0 only sends and rank 1 only receives; anything else is bad_config.
  void submit(std::vector<engine::collective_operation> group, done ended, started begun) override;
  void lose(error why) override;

 private:
  using clock = std::chrono::steady_clock;
  struct request {
    std::vector<at::Tensor> tensors;
    std::vector<held_memory> held = {};
    done ended;
    started begun;
    std::unique_ptr<engine::nccl::mark> ready = {};  // what it waits for on the device
    clock::time_point due = {};
    std::size_t left = 0;  // of its tensors
    std::optional<error> fault = {};
  };

  void run(std::promise<result<std::vector<std::byte>>> opened);
  result<std::vector<std::byte>> open_channel();
  bool await_work();
  void turn();
  result<bool> may_start(const request& next);
  void start(std::unique_ptr<request> next);
  void land();
  void check_deadlines();
  void break_off(const error& why);
  void give_up();

  ucx_terms how_;  // not changed later
  std::string name_;
  std::vector<std::byte> address_;
  // Of the thread, up to mutex_.
  std::unique_ptr<messages::ucx::memory_channel> channel_;
  std::optional<error> broken_;
  std::deque<std::unique_ptr<request>> waiting_, under_way_;
  std::deque<std::unique_ptr<request>> abandoned_;  // UCX may still read or write their tensors
  std::chrono::microseconds nap_{};
  std::mutex mutex_;
  std::condition_variable woken_;
  std::deque<std::unique_ptr<request>> asked_;
  std::optional<error> lost_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace troupe::actors
