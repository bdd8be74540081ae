#include "cluster/training/saving/checkpoint.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "cluster/checkpoints/weights_digest.hpp"
#include "cluster/config/config_tables.hpp"
#include "engine/model/model.hpp"
#include "engine/slices/file_faults.hpp"
#include "engine/slices/summed_file.hpp"
#include "engine/state/scaler_state.hpp"
#include "messages/base/log.hpp"
#include "optimizers/groups.hpp"
#include "optimizers/training/saved_state.hpp"

namespace troupe::cluster {
namespace {

using engine::named_tensor;
using engine::tensor_reader;

/// The digest of a file's weights as they are now.
result<at::Tensor> digest_of(const checkpoint& from) {
  weights_digest digest;
  const auto weights = engine::stream_of(from.weight_files, from.weights);
  if (!weights) return tl::unexpected(weights.error());
  const auto added = weights->send([&](const auto& name, std::uint64_t first, const auto& run) {
    digest.add(name, first, run);
    return result<void>();
  });
  if (!added) return tl::unexpected(added.error());
  return digest.value();
}

/// Notes what of a file belongs to an optimizer.
result<void> take_states(checkpoint& into, const std::shared_ptr<const tensor_reader>& file) {
  into.state_files.push_back(file);
  for (const auto& entry : file->tensors()) {
    if (!optimizers::is_state_name(entry.name) || entry.name == weights_digest::name) continue;
    if (entry.name != engine::scaler_name) {
      into.states.push_back(entry.name);
      continue;
    }
    auto scaler = file->read(entry);
    if (!scaler) return tl::unexpected(scaler.error());
    into.scaler = std::move(*scaler);
  }
  return {};
}

result<void> read_state_file(checkpoint& into) {
  const auto file = state_file_of(into.source);
  std::error_code absent;
  if (!std::filesystem::exists(file, absent)) return {};
  const auto opened = tensor_reader::open(file);
  if (!opened) return tl::unexpected(opened.error());
  const auto* const of = (*opened)->find(std::string(weights_digest::name));
  if (of == nullptr)
    return fail(errc::bad_data, file.string() + " lacks " + std::string(weights_digest::name) +
                                    ", so it is no file of --save-state; move it elsewhere");
  const auto wanted = (*opened)->read(*of);
  if (!wanted) return tl::unexpected(wanted.error());
  const auto found = digest_of(into);
  if (!found) return tl::unexpected(found.error());
  if (!wanted->equal(*found)) {
    log::warning(file.string() + " is the optimizer's state of other weights than " +
                 into.source.string() + " has now; it is passed over");
    return {};
  }
  return take_states(into, *opened);
}

result<void> check_finite(const engine::tensor_files& files, const std::string& name) {
  const auto [file, entry] = engine::find_in(files, name);
  const auto unfinite = engine::unfinite_value(*file, *entry);
  if (!unfinite) return tl::unexpected(unfinite.error());
  if (unfinite->empty()) return {};
  return fail(errc::bad_data, file->file().string() + ": tensor \"" + name + "\" holds " +
                                  std::string(*unfinite) +
                                  ", which training would only spread; begin from another file");
}

/// Where two tensors of the model and the file do not fit, or one has none: "fc.*" for "fc.weight".
std::set<std::string> misfits(const checkpoint& from, const std::vector<named_tensor>& own) {
  std::set<std::string> given(from.weights.begin(), from.weights.end()), globs;
  const auto note = [&](const std::string& name) {
    globs.insert(name.substr(0, name.rfind('.')) + ".*");
  };
  for (const auto& [name, tensor] : own) {
    if (from.skipped.contains(name)) continue;
    const bool is_given = given.erase(name) > 0;
    if (!is_given ||
        tensor.sizes() != at::IntArrayRef(engine::find_in(from.weight_files, name).entry->shape))
      note(name);
  }
  for (const auto& name : given) note(name);
  return globs;
}

std::string skip_hint(const std::set<std::string>& globs) {
  constexpr std::size_t most_named = 2;  // of more it is another model
  if (globs.empty() || globs.size() > most_named) return "";
  std::string list;
  for (const auto& glob : globs) list += (list.empty() ? "" : ",") + glob;
  return "; --init-skip \"" + list + "\" leaves that as it begins from the seed";
}

result<void> fits(const checkpoint& from, const std::vector<named_tensor>& own) {
  std::set<std::string> known;
  for (const auto& each : own) known.insert(each.name);
  for (const auto& name : from.weights)
    if (!known.contains(name))
      return fail(errc::bad_data, "weight '" + name + "' belongs to no layer of the model");
  const std::set<std::string> given(from.weights.begin(), from.weights.end());
  for (const auto& each : own) {
    if (from.skipped.contains(each.name)) continue;
    if (!given.contains(each.name))
      return fail(errc::bad_data, "weight '" + each.name +
                                      "' of the model is missing; expected shape " +
                                      c10::str(each.tensor.sizes()));
    const auto& entry = *engine::find_in(from.weight_files, each.name).entry;
    if (auto checked = engine::check_weight(each, entry.shape, entry.type); !checked)
      return checked;
  }
  return {};
}

result<void> skip_tensors(checkpoint& from, const engine::model& layers,
                          const std::vector<std::string>& globs) {
  const auto skips = [&](const std::string& name) {
    return optimizers::matches({.text = {}, .patterns = globs, .changed = {}}, name);
  };
  const auto own = engine::collect_weights(layers);
  for (const auto& glob : globs) {
    const auto is_meant = [&](const std::string& name) {
      return optimizers::matches({.text = {}, .patterns = {glob}, .changed = {}}, name);
    };
    if (std::ranges::none_of(own, is_meant, &named_tensor::name) &&
        std::ranges::none_of(from.weights, is_meant))
      return fail(errc::bad_config, "--init-skip: '" + glob +
                                        "' matches no tensor of the model or of " +
                                        from.source.string());
  }
  for (const auto& [one, other] : engine::ties(layers))
    if (skips(one) != skips(other))
      return fail(errc::bad_config, "--init-skip: '" + one + "' and '" + other +
                                        "' are one weight: skip both or none");
  std::erase_if(from.weights, skips);
  std::erase_if(from.states,
                [&](const auto& name) { return skips(optimizers::parameter_of(name)); });
  for (const auto& each : own)
    if (skips(each.name)) from.skipped.insert(each.name);
  return {};
}

/// Two names of one tensor.
struct tied_names {
  std::string one, other;
  bool are_states = false;
};

/// The ends of the model's ties, and the optimizer's states of them.
std::vector<tied_names> tied_names_of(const checkpoint& from, const engine::model& layers) {
  std::vector<tied_names> all;
  for (const auto& [one, other] : engine::ties(layers)) {
    if (from.skipped.contains(one)) continue;
    all.push_back({one, other});
    std::set<std::string> slots;  // with a dot behind
    for (const auto& name : from.states)
      if (const auto of = optimizers::parameter_of(name); of == one || of == other)
        slots.insert(name.substr(0, name.size() - of.size()));
    for (const auto& slot : slots) all.push_back({slot + one, slot + other, true});
  }
  return all;
}

/// Of two names of which files have one, the other stands for the same tensor.
void join_ties(checkpoint& from, const engine::model& layers) {
  for (const auto& [one, other, are_states] : tied_names_of(from, layers)) {
    auto& files = are_states ? from.state_files : from.weight_files;
    const bool has_one(engine::find_in(files, one)), has_other(engine::find_in(files, other));
    if (has_one == has_other) continue;
    const auto& given = has_one ? one : other;
    const auto& absent = has_one ? other : one;
    for (auto& file : files)
      if (const auto* const entry = file->find(given)) file = file->with_name(*entry, absent);
    (are_states ? from.states : from.weights).push_back(absent);
    from.stand_ins.insert(absent);
  }
}

result<std::string> digits_of(const engine::tensor_place& at) {
  return engine::tensor_sum_of(*at.file, *at.entry, engine::checksum_kind::xxh3);
}

/// Whether both ends of each tie begin with the same bits.
result<void> check_ties(const checkpoint& from, const engine::model& layers) {
  for (const auto& [one, other, are_states] : tied_names_of(from, layers)) {
    if (from.stand_ins.contains(one) || from.stand_ins.contains(other)) continue;
    const auto& files = are_states ? from.state_files : from.weight_files;
    const auto first = engine::find_in(files, one), second = engine::find_in(files, other);
    const auto here = digits_of(first), there = digits_of(second);
    if (!here || !there) return tl::unexpected((here ? there : here).error());
    if (first.entry->type == second.entry->type && *here == *there) continue;
    const auto text = first.file->file().string() + ": '" + one + "' and '" + other +
                      "' differ, but " + (are_states ? "their weights " : "") +
                      "are tied in the model";
    if (!from.is_of_run)
      return fail(errc::bad_data,
                  text +
                      "; begin from a file that has one of the two or the same values in both, "
                      "or train a model without the tie");
    log::warning(text + "; each goes on as its run left it");  // devices may round differently
    return {};
  }
  return {};
}

result<void> check_finite(const checkpoint& from) {
  for (const auto& name : from.weights)
    if (auto fine = check_finite(from.weight_files, name); !fine) return fine;
  for (const auto& name : from.states)
    if (auto fine = check_finite(from.state_files, name); !fine) return fine;
  return {};
}

result<void> check_fits(const checkpoint& from, const engine::model& layers) {
  const auto own = engine::collect_weights(layers);
  if (auto fine = fits(from, own); !fine)
    return fail(fine.error().code,
                from.source.string() + ": " + fine.error().text + skip_hint(misfits(from, own)));
  if (states_of(from, engine::parameters(layers)).size() == from.states.size()) return {};
  return fail(errc::bad_data, from.state_files.front()->file().string() +
                                  ": holds optimizer state of parameters that the model lacks");
}

}  // namespace

result<checkpoint> read_checkpoint(const std::filesystem::path& file) {
  const auto opened = tensor_reader::open(file);
  if (!opened) return tl::unexpected(opened.error());
  checkpoint read{.source = file, .weight_files = {*opened}, .state_files = {}};
  for (const auto& entry : (*opened)->tensors())
    if (!optimizers::is_state_name(entry.name)) read.weights.push_back(entry.name);
  const bool has_states = read.weights.size() < (*opened)->tensors().size();
  if (read.weights.empty())
    return fail(errc::bad_data, file.string() + " holds no weights" +
                                    (has_states ? ", but an optimizer's state only" : "") +
                                    "; name the file that --save wrote");
  auto states = has_states ? take_states(read, *opened) : read_state_file(read);
  if (!states) return tl::unexpected(states.error());
  return read;
}

result<checkpoint> read_checkpoint(const whole_checkpoint& from) {
  using contents = checkpoint_manifest::contents;
  const auto& [folder, manifest] = from;
  if (manifest.is_of_two_files()) {
    auto read = read_checkpoint(folder / checkpoint_weights_name);
    if (read) read->is_of_run = true;
    return read;
  }
  checkpoint read{.source = folder,
                  .weight_files = {},
                  .state_files = {},
                  .weights = manifest.weights,
                  .is_of_run = true};
  for (const auto& name : manifest.names_of(contents::weights)) {
    auto opened = tensor_reader::open(folder / name);
    if (!opened) return tl::unexpected(opened.error());
    read.weight_files.push_back(std::move(*opened));
  }
  for (const auto& name : manifest.names_of(contents::state)) {
    const auto opened = tensor_reader::open(folder / name);
    if (!opened) return tl::unexpected(opened.error());
    if (auto taken = take_states(read, *opened); !taken) return tl::unexpected(taken.error());
  }
  if (const auto& scaler = manifest.scaler)
    read.scaler = engine::to_tensor({.scale = scaler->scale, .applied = scaler->applied});
  return read;
}

result<checkpoint> check_start(const engine::model& layers, result<checkpoint> from,
                               const std::vector<std::string>& skip) {
  if (!from) return from;
  if (auto skipped = skip_tensors(*from, layers, skip); !skipped)
    return tl::unexpected(skipped.error());
  if (auto finite = check_finite(*from); !finite) return tl::unexpected(finite.error());
  join_ties(*from, layers);
  if (auto whole = check_fits(*from, layers); !whole) return tl::unexpected(whole.error());
  if (auto same = check_ties(*from, layers); !same) return tl::unexpected(same.error());
  return from;
}

std::vector<std::string> names_of_weights(const engine::model& layers) {
  std::vector<std::string> names;
  for (const auto& each : engine::collect_weights(layers)) names.push_back(each.name);
  return names;
}

std::vector<std::string> states_of(const checkpoint& from,
                                   const std::vector<named_tensor>& parameters) {
  std::set<std::string> names;
  for (const auto& each : parameters) names.insert(each.name);
  std::vector<std::string> found;
  std::ranges::copy_if(from.states, std::back_inserter(found), [&](const std::string& name) {
    return names.contains(optimizers::parameter_of(name));
  });
  return found;
}

}  // namespace troupe::cluster
