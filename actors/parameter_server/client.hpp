#pragma once

#include <caf/actor.hpp>
#include <caf/actor_system.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/base/deadlines.hpp"
#include "actors/futures/requester.hpp"
#include "actors/interfaces.hpp"
#include "actors/messages/parameter_server/worker.hpp"
#include "engine/model/layer.hpp"
#include "messages/link/shared_memory.hpp"

namespace troupe::actors {

/// How a worker takes part.
struct client_options {
  std::uint32_t rank = 0;       ///< Its place in the order of adding up; unique among members.
  bool bf16_gradients = false;  ///< Gradients travel in half the bytes, rounded.
  std::chrono::nanoseconds deadline = usual_deadlines.step;  ///< Of a push or pull.
  /// Where to put gradients that have to be copied before they are sent: the node's, if it lends.
  std::shared_ptr<messages::shared_memory> memory = {};
  batch_limits most = {};  ///< Of a message; a shard's part beyond that is cut, and so its answers.
};

/// A parameter as it is now, or some of its rows.
struct fresh_value {
  std::string name;
  at::Tensor rows;    // [r] i64; undefined: `values` are the whole parameter
  at::Tensor values;  // the parameter's shape, or [r, ...]
};

/// What a pull brings. The tensors are shared with whoever else pulled them, maybe with the shard's
/// process (a write ends in SIGSEGV then): not to be written.
struct fresh_values {
  param_version version;  // the oldest among the shards'
  std::vector<fresh_value> values;
};

/// A worker's place at a parameter server: a member from `join` on, as long as this object lives.
/// Pushes and pulls go to all shards at once, each shard's tensors in one message, or in pieces one
/// after another where they are more (see `client_options::most`).
///
/// Futures fail with the first error of any shard; peer_lost when a shard or the coordinator is
/// gone, within a second, also where the answer is another shard's. One push at a time. Used by one
/// thread. A resource: ends before the requester and the actor system.
///
/// Gradients are shared with the shards until their future is settled: not to be written meanwhile.
class parameter_client {
 public:
  /// Waits until every shard has admitted it. Errors: bad_config (a rank that is taken), peer_lost,
  /// timed_out.
  [[nodiscard]] static result<std::unique_ptr<parameter_client>> join(
      caf::actor_system& system, requester& ask, const coordinator_actor& coordinator,
      client_options options);
  parameter_client(const parameter_client&) = delete;
  parameter_client& operator=(const parameter_client&) = delete;
  /// Leaves.
  ~parameter_client();

  /// Parameters of all shards, by name.
  [[nodiscard]] const std::map<std::string, engine::parameter_entry>& parameters() const noexcept {
    return parameters_;
  }

  /// Hands in gradients, computed with parameters of `base` (the oldest of them), by name: dense,
  /// or torch's sparse COO tensors whose rows are sparse. What is missing had none. The future is
  /// the update that they are part of. Errors: bad_data (an unknown name; what shards refuse),
  /// stale, bad_frame (a version that does not exist), bad_config while another push is under way.
  [[nodiscard]] future<param_version> push(const std::vector<engine::named_tensor>& gradients,
                                           param_version base);

  /// The parameters named (none: all) that have changed since `newer_than` (nullopt: whether or
  /// not). Errors: bad_data for an unknown name.
  [[nodiscard]] future<fresh_values> pull(const std::vector<std::string>& names,
                                          std::optional<param_version> newer_than);

  /// What has changed since the last `refresh` or `push_pull`; at first everything.
  [[nodiscard]] future<fresh_values> refresh();

  /// `push` of gradients that were computed with what `refresh` and `push_pull` brought, and then
  /// `refresh`, in one round trip. After errc::stale: refresh and compute them again.
  [[nodiscard]] future<fresh_values> push_pull(const std::vector<engine::named_tensor>& gradients);

  /// The oldest version among the shards' as of the last `refresh` or `push_pull`.
  [[nodiscard]] param_version version() const;

  /// Fails with peer_lost when a shard or the coordinator is gone.
  [[nodiscard]] future<void> lost() const;

  /// Leaves, and waits for that. What is under way is cancelled.
  [[nodiscard]] result<void> leave();

 private:
  struct shared;  // with continuations
  struct shard_handle {
    shard_actor actor;
    std::vector<engine::parameter_entry> parameters;
    std::vector<bool> is_cut = {};  // by parameter: other shards have the rest of its rows
  };

  /// Where a parameter is, or some of its rows.
  struct piece {
    std::uint32_t shard = 0;
    std::uint32_t index = 0;  // in the shard's directory
    std::int64_t first_row = 0;
    std::int64_t rows = 0;  // where it is by rows; else 0
  };

  parameter_client(caf::actor_system& system, requester& ask, coordinator_actor coordinator,
                   client_options options);
  [[nodiscard]] result<void> enter(const server_joined& in);
  [[nodiscard]] result<std::vector<engine::tensor_batch>> split(
      const std::vector<engine::named_tensor>& gradients) const;
  static void add_gradient(std::vector<engine::batch_builder>& parts,
                           const std::vector<piece>& pieces, const at::Tensor& rows,
                           const at::Tensor& values);
  /// Asks a shard and completes its answer with the pieces that it has left.
  template <class Answer, class Request>
  [[nodiscard]] future<Answer> ask(std::size_t shard, Request request);
  /// A push's part, to each shard; the version each has reached, and the fresh values.
  [[nodiscard]] future<std::vector<gradients_pushed>> push_parts(
      const std::vector<engine::named_tensor>& gradients, param_version base, bool pull);

  caf::actor_system& system_;
  requester& ask_;
  const coordinator_actor coordinator_;
  const client_options options_;
  engine::worker_id id_;
  std::uint64_t sequence_ = 0;
  std::map<std::string, engine::parameter_entry> parameters_;
  std::map<std::string, std::vector<piece>> places_;
  std::shared_ptr<shared> shared_;
  caf::actor presence_;
};

/// Gives a model's parameters the values that a pull brought. A whole parameter is not copied but
/// becomes the model's, unless rows of it may follow (`by_rows` in the directory). Errors: bad_data
/// for a name or shape that the model does not have.
[[nodiscard]] result<void> take_values(
    const std::vector<engine::named_tensor>& parameters,
    const std::map<std::string, engine::parameter_entry>& directory, const fresh_values& from);

}  // namespace troupe::actors
