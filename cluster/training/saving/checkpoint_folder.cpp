#include "cluster/training/saving/checkpoint_folder.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>

#include "cluster/config/trainer_config.hpp"
#include "cluster/launch/file_digest.hpp"
#include "cluster/training/saving/weights_digest.hpp"
#include "engine/state/atomic_file.hpp"
#include "engine/state/safetensors.hpp"
#include "messages/descriptor.hpp"

namespace troupe::cluster {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int format = 1;
constexpr std::string_view prefix = "step-";
constexpr std::string_view half_written = ".writing-";
constexpr std::string_view weights_name = "weights.safetensors";
constexpr std::size_t checksum_bytes = 32;

tl::unexpected<error> failed(const fs::path& where, const std::string& what) {
  return fail(errc::io_failed, where.string() + ": " + what + ": " + std::strerror(errno));
}

tl::unexpected<error> failed(const fs::path& where, const std::string& what,
                             const std::error_code& why) {
  return fail(errc::io_failed, where.string() + ": " + what + ": " + why.message());
}

std::optional<std::uint64_t> step_in(const std::string& name) {
  if (!name.starts_with(prefix)) return std::nullopt;
  std::uint64_t step = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, status] = std::from_chars(name.data() + prefix.size(), end, step);
  return stop == end && status == std::errc() ? std::optional(step) : std::nullopt;
}

/// So that names in a folder outlive a loss of power.
result<void> sync_folder(const fs::path& folder) {
  const descriptor open(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (open.get() < 0 || ::fsync(open.get()) != 0) return failed(folder, "cannot be synced");
  return {};
}

result<checkpoint_manifest::file> checksum_of(const fs::path& file) {
  auto digest = digest_of_file(file, checksum_bytes);
  if (!digest)
    return fail(errc::bad_data, file.string() + " cannot be read: " + digest.error().text);
  return checkpoint_manifest::file{digest->bytes, std::move(digest->digits)};
}

std::string to_text(const checkpoint_manifest& manifest) {
  json files = json::object();
  for (const auto& [name, file] : manifest.files)
    files[name] = {{"bytes", file.bytes}, {"blake2b", file.checksum}};
  return json{{"troupe_checkpoint", format},
              {"step", manifest.step},
              {"settings", manifest.settings},
              {"files", std::move(files)}}
             .dump(2) +
         "\n";
}

result<void> write_manifest(const fs::path& file, const checkpoint_manifest& manifest) {
  auto out = engine::atomic_file::create(file);
  if (!out) return tl::unexpected(out.error());
  const auto text = to_text(manifest);
  if (auto written = (*out)->write(std::as_bytes(std::span(text))); !written) return written;
  return (*out)->commit();
}

result<checkpoint_manifest> read_manifest(const fs::path& file) try {
  std::ifstream in(file);
  if (!in)
    return fail(errc::bad_data, file.string() + " cannot be read (" + std::strerror(errno) +
                                    "), so that there is no checkpoint");
  const auto parsed = json::parse(in);
  if (const auto version = parsed.at("troupe_checkpoint").get<int>(); version != format)
    return fail(errc::bad_data, file.string() + ": its format is number " +
                                    std::to_string(version) + ", and this program knows number " +
                                    std::to_string(format) + "; take the Troupe that wrote it");
  checkpoint_manifest out;
  out.step = parsed.at("step").get<std::uint64_t>();
  out.settings = parsed.at("settings").get<std::map<std::string, std::string>>();
  for (const auto& [name, each] : parsed.at("files").items()) {
    if (name.find('/') != std::string::npos || name.starts_with('.'))
      return fail(errc::bad_data, file.string() + ": '" + name + "' is no name of its files");
    out.files[name] = {each.at("bytes").get<std::uint64_t>(),
                       each.at("blake2b").get<std::string>()};
  }
  if (!out.files.contains(std::string(weights_name)))
    return fail(errc::bad_data, file.string() + " names no " + std::string(weights_name));
  return out;
} catch (const json::exception& problem) {
  return fail(errc::bad_data, file.string() + " is no manifest: " + problem.what());
}

/// Takes its name, instead of what has it.
result<void> take_name(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return {};
  if (errno != ENOTEMPTY && errno != EEXIST) return failed(to, "cannot be written");
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) != 0)
    return failed(to, "cannot be replaced");
  std::error_code why;
  fs::remove_all(from, why);  // what it replaces
  return {};
}

/// The names of what a folder holds; empty where it cannot be read.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code why;
  for (fs::directory_iterator at(folder, why), end; !why && at != end; at.increment(why))
    names.push_back(at->path().filename().string());
  return names;
}

}  // namespace

fs::path whole_checkpoint::weights() const {
  return folder / weights_name;
}

fs::path checkpoint_folder::path_of(std::uint64_t step) const {
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "step-%06llu", static_cast<unsigned long long>(step));
  return folder_ / name.data();
}

result<void> checkpoint_folder::prepare() const {
  std::error_code why;
  fs::create_directories(folder_, why);
  if (why) return failed(folder_, "no folder can be made there", why);
  for (const auto& name : names_in(folder_))
    if (name.starts_with(half_written)) fs::remove_all(folder_ / name, why);
  const auto trial = folder_ / (std::string(half_written) + "trial");
  if (::mkdir(trial.c_str(), 0700) != 0) return failed(folder_, "cannot be written to");
  fs::remove_all(trial, why);
  return {};
}

result<fs::path> checkpoint_folder::write(std::uint64_t step,
                                          const std::map<std::string, std::string>& settings,
                                          const parts& what) const {
  const auto name = path_of(step);
  const auto half = folder_ / (std::string(half_written) + name.filename().string());
  std::error_code why;
  fs::remove_all(half, why);
  if (::mkdir(half.c_str(), 0777) != 0) return failed(name, "cannot be written");
  const auto give_up = [&half](error reason) {
    std::error_code ignored;
    fs::remove_all(half, ignored);
    return tl::unexpected(std::move(reason));
  };
  weights_digest digest;
  const auto weights = half / weights_name;
  if (auto done = engine::save_safetensors(weights, digested(what.weights, digest)); !done)
    return give_up(done.error());
  auto state = what.state();
  if (!state) return give_up(state.error());
  if (auto done =
          engine::save_safetensors(state_file_of(weights), with_digest(std::move(*state), digest));
      !done)
    return give_up(done.error());
  checkpoint_manifest manifest{.step = step, .settings = settings, .files = {}};
  for (const auto& file : {weights, state_file_of(weights)}) {
    auto sum = checksum_of(file);
    if (!sum) return give_up({errc::io_failed, sum.error().text});
    manifest.files[file.filename().string()] = std::move(*sum);
  }
  if (auto done = write_manifest(half / manifest_name, manifest); !done)
    return give_up(done.error());
  if (auto done = sync_folder(half); !done) return give_up(done.error());
  if (auto done = take_name(half, name); !done) return give_up(done.error());
  if (auto done = sync_folder(folder_); !done) return tl::unexpected(done.error());
  return name;
}

result<void> checkpoint_folder::prune(std::size_t keep) const {
  const auto all = steps();
  for (std::size_t i = keep; i < all.size(); ++i) {
    // Without its manifest it is none, should we be killed half-way.
    std::error_code why;
    fs::remove(path_of(all[i]) / manifest_name, why);
    if (!why) fs::remove_all(path_of(all[i]), why);
    if (why) return failed(path_of(all[i]), "an old checkpoint cannot be removed", why);
  }
  return {};
}

std::vector<std::uint64_t> checkpoint_folder::steps() const {
  std::vector<std::uint64_t> all;
  for (const auto& name : names_in(folder_)) {
    const auto step = step_in(name);
    std::error_code why;
    if (step && fs::exists(folder_ / name / manifest_name, why)) all.push_back(*step);
  }
  std::ranges::sort(all, std::greater());
  return all;
}

result<std::optional<whole_checkpoint>> checkpoint_folder::latest() const {
  const auto all = steps();
  if (all.empty()) return std::nullopt;
  auto newest = read_whole(path_of(all.front()));
  if (newest) return *std::move(newest);
  for (std::size_t i = 1; i < all.size(); ++i)
    if (read_whole(path_of(all[i])))
      return fail(errc::bad_data, newest.error().text + "; the one of step " +
                                      std::to_string(all[i]) + " is whole: --resume " +
                                      std::to_string(all[i]));
  return fail(errc::bad_data, newest.error().text + "; there is no older one that is whole");
}

result<whole_checkpoint> checkpoint_folder::of_step(std::uint64_t step) const {
  const auto all = steps();
  if (std::ranges::find(all, step) != all.end()) return read_whole(path_of(step));
  std::string known;
  for (const auto each : all) known += (known.empty() ? "" : ", ") + std::to_string(each);
  return fail(errc::bad_data, folder_.string() + " has no checkpoint of step " +
                                  std::to_string(step) + "; it has " +
                                  (known.empty() ? "none" : "those of steps " + known));
}

result<whole_checkpoint> read_whole(const fs::path& folder) {
  auto manifest = read_manifest(folder / checkpoint_folder::manifest_name);
  if (!manifest) return tl::unexpected(manifest.error());
  for (const auto& [name, wanted] : manifest->files) {
    const auto file = folder / name;
    const auto found = checksum_of(file);
    if (!found) return tl::unexpected(found.error());
    if (found->bytes != wanted.bytes)
      return fail(errc::bad_data, file.string() + " has " + std::to_string(found->bytes) +
                                      " bytes, and its checkpoint wrote " +
                                      std::to_string(wanted.bytes));
    if (found->checksum != wanted.checksum)
      return fail(errc::bad_data,
                  file.string() + " is not as its checkpoint wrote it: its checksum differs");
  }
  return whole_checkpoint{folder, std::move(*manifest)};
}

}  // namespace troupe::cluster
