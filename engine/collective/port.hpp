#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/collective/collective.hpp"
#include "engine/collective/reach.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine {

/// One operation of a group. Its tensors lie on the group's device, without gaps, and their shapes
/// do not matter beside their sizes, which are the same on all ranks.
struct collective_operation {
  collective what = collective::all_reduce;
  at::Tensor from = {};  ///< Undefined for receive, and for broadcast except at its root.
  /// Undefined for send, and for reduce except at its root. May be `from` itself where both have
  /// one size.
  at::Tensor to = {};
  std::uint32_t peer = 0;
};

/// Checks an operation before any of it is done. Errors: bad_config, saying what is wrong with it.
[[nodiscard]] result<void> check(const collective_operation& one, std::uint32_t rank,
                                 std::uint32_t ranks);

/// What is wrong with the types or sizes of an operation's tensors; empty: nothing.
[[nodiscard]] std::string size_fault(collective what, const at::Tensor& from, const at::Tensor& to,
                                     std::uint32_t ranks);

/// How parts are added.
enum class sum_order : std::uint8_t {
  tree,  ///< Element by element in the binary tree of tree.hpp over ranks: the same bits anywhere.
  fast,  ///< As the library likes: no bits are promised.
};

/// One rank of a group that communicates by collectives. Groups of operations run in the order in
/// which they were submitted; all ranks submit the same ones in the same order. After the first
/// failure, but for a group that was refused as it is (bad_config), nothing succeeds any more: what
/// is or will be submitted fails with the same error. Every
/// wait has a deadline. The destructor gives up what is under way and waits for no other rank,
/// which hear of this one's end by other ways. Thread-safe.
class collective_port {
 public:
  using done = std::function<void(const result<void>&)>;
  using started = std::function<void()>;

  virtual ~collective_port() = default;

  [[nodiscard]] virtual std::uint32_t rank() const noexcept = 0;
  [[nodiscard]] virtual std::uint32_t ranks() const noexcept = 0;

  /// Returns at once. The operations of a group progress together, on a device behind what the
  /// calling thread's current stream has been given before. `ended` is told, on a thread of the
  /// port, when `to` of all of them is there, or why it never will be: bad_config (an operation
  /// that cannot be), peer_lost, timed_out, handler_failed, cancelled. It must not block or throw,
  /// nor end the port. Tensors are held until then. `begun`, if any, is called before, likewise,
  /// once the device has been given all of them, so that nothing this process does can hold them up
  /// any more; not at all where that fails.
  virtual void submit(std::vector<collective_operation> group, done ended, started begun) = 0;
  void submit(std::vector<collective_operation> group, done ended) {
    submit(std::move(group), std::move(ended), {});
  }

  /// A rank is lost: this one aborts, and `why` is what all that is under way fails with. Only the
  /// first call counts.
  virtual void lose(error why) = 0;
};

/// What a rank joins its group by.
struct collective_place {
  std::string name;        ///< For messages: "the replicas of stage-2".
  std::string invitation;  ///< See collective_maker::invite.
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
  c10::Device on{c10::kCPU};
  sum_order order = sum_order::tree;
  socket_reach sockets = socket_reach::loopback;  ///< What the library's own may use.
};

/// Makes the ports of a process. A value that `main` passes to whoever needs ports. Thread-safe.
class collective_maker {
 public:
  virtual ~collective_maker() = default;

  /// The library's name and version, "NCCL 2.28.9". Errors: transport_missing, saying why tensors
  /// of the device cannot be communicated by it, and what to do.
  [[nodiscard]] virtual result<std::string> library_for(c10::Device on) const = 0;

  /// Where the library's own sockets are in this process, which its first group decides for all
  /// later ones; empty: there was none, or the library opens none.
  [[nodiscard]] virtual std::optional<socket_reach> sockets() const = 0;

  /// What the ranks of one new group have in common, as text without spaces. Whoever holds it may
  /// join; who asked for it is rank 0, on that device. Errors: transport_missing, also where
  /// `sockets` are to keep to loopback and those of this process are on the network;
  /// handler_failed.
  [[nodiscard]] virtual result<std::string> invite(std::uint32_t ranks, socket_reach sockets,
                                                   c10::Device on) const = 0;

  /// Begins to join; what is submitted waits for all ranks, or fails because they do not come or
  /// as `invite` does because of sockets. Errors: transport_missing, bad_frame for what is no
  /// invitation.
  [[nodiscard]] virtual result<std::shared_ptr<collective_port>> join(
      const collective_place& place) const = 0;
};

}  // namespace troupe::engine
