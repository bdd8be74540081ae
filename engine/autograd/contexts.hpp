#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "engine/autograd/weight_gradients.hpp"
#include "engine/schedule/stage_core.hpp"
#include "messages/ids.hpp"

namespace troupe::engine {

/// What a stage keeps of one micro-batch between its forward and the end of its backward. Owning it
/// keeps the recorded graph, and with it the activations, alive.
struct microbatch_context {
  at::Tensor input = {};   // leaf of the recorded graph; undefined on the first stage
  at::Tensor output = {};  // its root: the activation, or the loss on the last stage
  std::vector<weight_task> weights = {};  // left by the backward of the input
};

/// The contexts of a stage, keyed by (epoch, step, micro-batch). Not thread-safe.
class microbatch_contexts {
 public:
  /// The key is new: a second forward of the same micro-batch is a bug and asserts.
  void put(const step_key& step, microbatch_id microbatch, microbatch_context context);

  /// Hands the context over to its backward; nullopt if there is none.
  [[nodiscard]] std::optional<microbatch_context> take(const step_key& step,
                                                       microbatch_id microbatch);

 private:
  std::map<std::pair<step_key, microbatch_id>, microbatch_context> contexts_;
};

/// The sum of a step's gradients, one entry a parameter, added in the order given. What a plain
/// `backward()` per micro-batch would leave in `.grad`, to the bit, without touching `.grad`.
class gradient_sum {
 public:
  /// Undefined entries add nothing. The tensors are not written.
  void add(const std::vector<at::Tensor>& gradients);
  void add(std::size_t parameter, const at::Tensor& gradient);

  /// The sums so far (nullopt: no gradient at all); starts anew.
  [[nodiscard]] std::vector<std::optional<at::Tensor>> take();

 private:
  struct running_sum {
    at::Tensor sum;
    bool owned = false;  // made here, so it may be added to in place
  };
  std::vector<running_sum> sums_;
};

}  // namespace troupe::engine
