#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "engine/autograd/storage_watch.hpp"
#include "engine/autograd/weight_gradients.hpp"
#include "engine/step/step_key.hpp"
#include "messages/base/ids.hpp"

namespace troupe::engine {

/// What a stage keeps of one micro-batch between its forward and the end of its backward. Owning it
/// keeps the recorded graph, and with it the activations, alive.
struct microbatch_context {
  at::Tensor input = {};   // leaf of the recorded graph; undefined on the first stage
  at::Tensor output = {};  // its root: the activation, or the loss on the last stage
};

/// The contexts of a stage's slice, keyed by (epoch, step, micro-batch), and the bytes that each
/// holds: its input and output, and of the tensors that were made for it those that still live, as
/// the activations that the graph keeps and the gradients that a deferred task needs. Not
/// thread-safe.
class microbatch_contexts {
 public:
  /// The key is new: a second forward of the same micro-batch is a bug and asserts. The first of a
  /// step, when there are no others, counts again what those before it have left.
  void put(const step_key& step, microbatch_id microbatch, microbatch_context context);

  /// Hands the context over to its backward; nullopt if there is none.
  [[nodiscard]] std::optional<microbatch_context> take(const step_key& step,
                                                       microbatch_id microbatch);

  /// Tensors were made for a micro-batch, and not given to anybody else; they count until they are
  /// freed.
  void charge(const step_key& step, microbatch_id microbatch, const watched_storages& made);

  /// The micro-batch's action is over: counts again what its context holds.
  void count(const step_key& step, microbatch_id microbatch);

  /// What a step's micro-batches hold now; 0 once the last of them has gone backward, or somebody
  /// keeps what was made for them.
  [[nodiscard]] std::uint64_t bytes(const step_key& step) const;

  /// The most that all contexts held at once, counted after actions. Resets the maximum.
  [[nodiscard]] std::uint64_t take_peak_bytes() { return std::exchange(peak_bytes_, held_bytes_); }

 private:
  using key = std::pair<step_key, microbatch_id>;

  struct account {
    watched_storages made;
    std::uint64_t bytes = 0;  // when last counted
  };

  [[nodiscard]] std::uint64_t bytes_of(const std::pair<const key, account>& of) const;
  void recount();

  std::map<key, microbatch_context> contexts_;
  std::map<key, account> accounts_;  // of micro-batches that hold something
  std::uint64_t held_bytes_ = 0;     // sum over the accounts
  std::uint64_t peak_bytes_ = 0;
};

/// The sum of a step's gradients, one entry per parameter, added in the order given. What a plain
/// `backward()` per micro-batch would leave in `.grad`, to the bit, without touching `.grad`.
class gradient_sum {
 public:
  explicit gradient_sum(std::size_t parameters) : sums_(parameters) {}

  /// Undefined entries add nothing. The tensors are not written.
  void add(const std::vector<at::Tensor>& gradients);
  void add(std::size_t parameter, const at::Tensor& gradient);
  /// The same of a gradient that is given away: later ones are added to it in place, unless
  /// somebody else holds its memory.
  void add(std::size_t parameter, at::Tensor&& gradient);
  /// Adds what the task computes.
  void add(std::size_t parameter, const weight_task& task);

  /// The sums so far (nullopt: no gradient at all). Resets them.
  [[nodiscard]] std::vector<std::optional<at::Tensor>> take();
  /// The same of one parameter.
  [[nodiscard]] std::optional<at::Tensor> take(std::size_t parameter);

 private:
  struct running_sum {
    at::Tensor sum;
    bool owned = false;  // nobody else has it, so it may be added to in place
  };
  std::vector<running_sum> sums_;
};

}  // namespace troupe::engine
