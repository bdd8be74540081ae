#include "cluster/training/saving/checkpoint.hpp"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "cluster/config/trainer_config.hpp"
#include "engine/model/model.hpp"
#include "engine/state/safetensors.hpp"
#include "engine/state/scaler_state.hpp"
#include "messages/base/log.hpp"
#include "optimizers/groups.hpp"
#include "optimizers/training/saved_state.hpp"

namespace troupe::cluster {
namespace {

using engine::named_tensor;

constexpr std::string_view digest_name = "optimizer.weights_digest";  // [] i64

/// Tells tensors apart that somebody trained, not those that somebody forged.
std::uint64_t digest_of(std::string_view bytes, std::uint64_t seed) {
  constexpr std::uint64_t factor = 0x9e3779b97f4a7c15;
  std::uint64_t digest = seed;
  const auto take = [&](std::uint64_t word) { digest = (std::rotl(digest, 5) ^ word) * factor; };
  for (; bytes.size() >= sizeof(std::uint64_t); bytes.remove_prefix(sizeof(std::uint64_t))) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof word);
    take(word);
  }
  for (const char byte : bytes) take(static_cast<unsigned char>(byte));
  return digest;
}

/// In whatever order they stand.
at::Tensor digest_of(const std::vector<named_tensor>& tensors) {
  std::uint64_t sum = 0;
  for (const auto& [name, tensor] : tensors) {
    const auto dense = tensor.detach().cpu().contiguous();
    const std::string_view bytes(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
    sum += digest_of(bytes, digest_of(name, 0));
  }
  return at::scalar_tensor(static_cast<std::int64_t>(sum), at::kLong);
}

/// Moves what belongs to an optimizer out of the weights.
void take_states(checkpoint& into, std::vector<named_tensor> tensors) {
  for (auto& each : tensors) {
    if (each.name == engine::scaler_name)
      into.scaler = each.tensor;
    else if (each.name != digest_name)
      into.states.push_back(std::move(each));
  }
}

result<void> read_state_file(checkpoint& into) {
  auto file = state_file_of(into.file);
  std::error_code absent;
  if (!std::filesystem::exists(file, absent)) return {};
  auto tensors = engine::load_safetensors(file);
  if (!tensors) return tl::unexpected(tensors.error());
  const auto of = std::ranges::find(*tensors, digest_name, &named_tensor::name);
  if (of == tensors->end())
    return fail(errc::bad_data, file.string() + " lacks " + std::string(digest_name) +
                                    ", so it is no file of --save-state; move it elsewhere");
  if (!of->tensor.equal(digest_of(into.weights))) {
    log::warning(file.string() + " is the optimizer's state of other weights than " +
                 into.file.string() + " has now; it is passed over");
    return {};
  }
  into.state_file = std::move(file);
  take_states(into, std::move(*tensors));
  return {};
}

bool is_finite(const at::Tensor& tensor) {
  return !tensor.is_floating_point() || at::isfinite(tensor).all().item<bool>();
}

/// Where two tensors of the model and the file do not fit, or one has none: "fc.*" for "fc.weight".
std::set<std::string> misfits(const checkpoint& from, const engine::model& layers) {
  std::map<std::string, at::Tensor> given;
  for (const auto& each : from.weights) given.emplace(each.name, each.tensor);
  std::set<std::string> globs;
  const auto note = [&](const std::string& name) {
    globs.insert(name.substr(0, name.rfind('.')) + ".*");
  };
  for (const auto& [name, tensor] : engine::collect_weights(layers)) {
    const auto found = given.find(name);
    if (found == given.end() || found->second.sizes() != tensor.sizes()) note(name);
    if (found != given.end()) given.erase(found);
  }
  for (const auto& [name, tensor] : given) note(name);
  return globs;
}

std::string skip_hint(const std::set<std::string>& globs) {
  constexpr std::size_t most_named = 2;  // of more it is another model
  if (globs.empty() || globs.size() > most_named) return "";
  std::string list;
  for (const auto& glob : globs) list += (list.empty() ? "" : ",") + glob;
  return "; --init-skip \"" + list + "\" leaves that as it begins from the seed";
}

}  // namespace

std::vector<named_tensor> state_of(const std::vector<named_tensor>& weights,
                                   std::vector<named_tensor> states) {
  states.push_back({std::string(digest_name), digest_of(weights)});
  return states;
}

result<checkpoint> read_checkpoint(const std::filesystem::path& file) {
  auto tensors = engine::load_safetensors(file);
  if (!tensors) return tl::unexpected(tensors.error());
  checkpoint read{.file = file, .state_file = file, .weights = {}, .states = {}, .scaler = {}};
  const auto states = std::ranges::stable_partition(
      *tensors, [](const auto& each) { return !optimizers::is_state_name(each.name); });
  read.weights.assign(std::move_iterator(tensors->begin()), std::move_iterator(states.begin()));
  take_states(read, {std::move_iterator(states.begin()), std::move_iterator(states.end())});
  if (read.weights.empty())
    return fail(errc::bad_data, file.string() + " holds no weights" +
                                    (states.empty() ? "" : ", but an optimizer's state only") +
                                    "; name the file that --save wrote");
  if (!states.empty()) return read;
  if (auto beside = read_state_file(read); !beside) return tl::unexpected(beside.error());
  return read;
}

result<void> skip_tensors(checkpoint& from, const engine::model& layers,
                          const std::vector<std::string>& globs) {
  const auto skips = [&](const std::string& name) {
    return optimizers::matches({.text = {}, .patterns = globs, .changed = {}}, name);
  };
  const auto own = engine::collect_weights(layers);
  for (const auto& glob : globs) {
    const auto is_meant = [&](const named_tensor& each) {
      return optimizers::matches({.text = {}, .patterns = {glob}, .changed = {}}, each.name);
    };
    if (std::ranges::none_of(own, is_meant) && std::ranges::none_of(from.weights, is_meant))
      return fail(
          errc::bad_config,
          "--init-skip: '" + glob + "' matches no tensor of the model or of " + from.file.string());
  }
  for (const auto& [one, other] : engine::ties(layers))
    if (skips(one) != skips(other))
      return fail(errc::bad_config, "--init-skip: '" + one + "' and '" + other +
                                        "' are one weight: skip both or none");
  std::erase_if(from.weights, [&](const auto& each) { return skips(each.name); });
  std::erase_if(from.states,
                [&](const auto& each) { return skips(optimizers::parameter_of(each.name)); });
  std::ranges::copy_if(own, std::back_inserter(from.weights),
                       [&](const auto& each) { return skips(each.name); });
  return {};
}

result<void> check_finite(const checkpoint& from) {
  const auto check = [](const std::filesystem::path& file,
                        const std::vector<named_tensor>& tensors) -> result<void> {
    const auto bad =
        std::ranges::find_if_not(tensors, [](const auto& each) { return is_finite(each.tensor); });
    if (bad == tensors.end()) return {};
    const bool has_nan = at::isnan(bad->tensor).any().item<bool>();
    return fail(errc::bad_data, file.string() + ": tensor \"" + bad->name + "\" holds " +
                                    (has_nan ? "NaN" : "infinity") +
                                    ", which training would only spread; begin from another file");
  };
  return check(from.file, from.weights).and_then([&] {
    return check(from.state_file, from.states);
  });
}

result<void> load_weights(const checkpoint& from, const engine::model& layers) {
  return engine::load_weights(layers, from.weights).map_error([&](error why) {
    why.text = from.file.string() + ": " + why.text + skip_hint(misfits(from, layers));
    return why;
  });
}

}  // namespace troupe::cluster
