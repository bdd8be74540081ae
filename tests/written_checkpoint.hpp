#pragma once

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cluster/checkpoints/checkpoint_folder.hpp"
#include "cluster/checkpoints/weights_digest.hpp"
#include "engine/checksums/file_digest.hpp"
#include "engine/checksums/running_checksum.hpp"
#include "engine/slices/summed_file.hpp"
#include "engine/state/safetensors.hpp"
#include "engine/state/tensor_reader.hpp"

// Checkpoints as a run writes them, and as older ones did.

namespace troupe::tests {

/// What one stage has of a checkpoint.
struct written_slice {
  std::vector<engine::named_tensor> weights;
  std::vector<engine::named_tensor> state = {};
};

using checkpoint_settings = std::map<std::string, std::string>;

/// One of several stages, in the model's order.
inline std::filesystem::path write_checkpoint(
    const std::filesystem::path& folder, std::uint64_t step, const checkpoint_settings& settings,
    const std::vector<written_slice>& slices,
    std::optional<cluster::checkpoint_manifest::loss_scale> scaler = {}) {
  using contents = cluster::checkpoint_manifest::contents;
  std::filesystem::create_directories(folder);
  const cluster::checkpoint_folder all(folder);
  const auto begun = all.begin(step);
  REQUIRE(begun);
  cluster::checkpoint_manifest manifest{
      .step = step, .settings = settings, .files = {}, .weights = {}, .scaler = scaler};
  const auto save = [&](const std::string& name, contents holds, const auto& tensors) {
    if (tensors.empty()) return;
    const auto sums = engine::save_summed(begun->folder / name, engine::stream_of(tensors));
    REQUIRE(sums);
    manifest.files[name] = {holds, *sums};
  };
  for (std::size_t stage = 0; stage < slices.size(); ++stage) {
    const auto ending = ".stage-" + std::to_string(stage) + ".safetensors";
    save("weights" + ending, contents::weights, slices[stage].weights);
    save("state" + ending, contents::state, slices[stage].state);
    for (const auto& each : slices[stage].weights) manifest.weights.push_back(each.name);
  }
  const auto written = all.finish(*begun, manifest);
  INFO((written ? "" : written.error().text));
  REQUIRE(written);
  return *written;
}

/// One of two files, as Troupe wrote them before stages did.
inline std::filesystem::path write_two_files(const std::filesystem::path& folder,
                                             std::uint64_t step,
                                             const checkpoint_settings& settings,
                                             const written_slice& all) {
  const auto made = cluster::checkpoint_folder(folder).path_of(step);
  std::filesystem::create_directories(made);
  cluster::weights_digest digest;
  cluster::checkpoint_manifest manifest{.step = step, .settings = settings, .files = {}};
  const auto save = [&](const std::string& name, const engine::tensor_stream& tensors) {
    REQUIRE(engine::save_safetensors(made / name, tensors));
    const auto reader = engine::tensor_reader::open(made / name);
    REQUIRE(reader);
    const auto whole = engine::digest_of_file(made / name, 32);
    REQUIRE(whole);
    auto& file = manifest.files[name];
    file.sums.bytes = whole->bytes;
    file.whole = whole->digits;
    file.sums.by = engine::checksum_kind::blake2b;
    for (const auto& each : (*reader)->tensors())
      file.sums.tensors[each.name] = engine::tensor_sum_of(**reader, each, file.sums.by).value();
  };
  save("weights.safetensors", cluster::digested(engine::stream_of(all.weights), digest));
  save("weights.state.safetensors", cluster::with_digest(engine::stream_of(all.state), digest));
  manifest.files["weights.state.safetensors"].holds = cluster::checkpoint_manifest::contents::state;
  const auto file = engine::atomic_file::create(made / cluster::checkpoint_folder::manifest_name);
  REQUIRE(file);
  const auto text = cluster::to_text(manifest);
  REQUIRE((*file)->write(std::as_bytes(std::span(text))));
  REQUIRE((*file)->commit());
  return made;
}

/// The text of a manifest that was altered, with the checksum that it would have had.
inline std::string sealed(nlohmann::json manifest) {
  using engine::checksum_kind;
  manifest.erase("checksum");
  const auto text = manifest.dump();
  const bool is_older = manifest.at("troupe_checkpoint").get<int>() < 4;
  engine::running_checksum sum(is_older ? checksum_kind::blake2b : checksum_kind::xxh3, 32);
  sum.add(std::as_bytes(std::span(text)));
  manifest["checksum"] = sum.digits();
  return manifest.dump();
}

/// The sums of a file that has these, as older versions made them.
inline engine::file_sums older_sums(engine::file_sums sums, const std::filesystem::path& file) {
  const auto reader = engine::tensor_reader::open(file);
  REQUIRE(reader);
  sums.by = engine::checksum_kind::blake2b;
  sums.header = engine::header_sum_of(**reader, sums.by).value();
  for (const auto& each : (*reader)->tensors())
    sums.tensors.at(each.name) = engine::tensor_sum_of(**reader, each, sums.by).value();
  return sums;
}

/// A manifest as older versions wrote it of the same files, which are in the folder `files`.
inline std::string older_manifest(const std::filesystem::path& manifest,
                                  const std::filesystem::path& files) {
  auto read = cluster::read_manifest(manifest);
  REQUIRE(read);
  for (auto& [name, file] : read->files) file.sums = older_sums(file.sums, files / name);
  return cluster::to_text(*read);
}

/// All tensors of a whole checkpoint's weights, in the model's order, or of its state by names.
inline std::vector<engine::named_tensor> tensors_of(const cluster::whole_checkpoint& of,
                                                    cluster::checkpoint_manifest::contents which) {
  std::map<std::string, at::Tensor> found;
  std::vector<engine::named_tensor> all;
  for (const auto& name : of.manifest.names_of(which)) {
    auto loaded = engine::load_safetensors(of.folder / name);
    REQUIRE(loaded);
    for (auto& [tensor, values] : *loaded) {
      all.push_back({tensor, values});
      found.emplace(tensor, values);
    }
  }
  if (which == cluster::checkpoint_manifest::contents::state || of.manifest.is_of_two_files())
    return all;
  all.clear();
  for (const auto& name : of.manifest.weights) all.push_back({name, found.at(name)});
  return all;
}

}  // namespace troupe::tests
