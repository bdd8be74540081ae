#include "actors/saving/slice_store.hpp"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "actors/base/deadlines.hpp"
#include "actors/base/errors.hpp"
#include "actors/base/failure.hpp"
#include "actors/detached.hpp"
#include "actors/messages/common.hpp"
#include "actors/messages/slices.hpp"
#include "engine/slices/file_copy.hpp"
#include "engine/slices/file_faults.hpp"

namespace troupe::actors {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t bytes_at_once = std::uint64_t{8} << 20;
constexpr auto store_name = "the store of slices";

struct slice_store_state {
  std::unique_ptr<engine::slice_folder> folder;
};

using slice_store_pointer = slice_store_actor::stateful_pointer<slice_store_state>;

/// A file as a stage of this host may read it.
result<known_file> known(const fs::path& file) {
  const auto opened = engine::tensor_reader::open(file);
  if (!opened) return tl::unexpected(opened.error());
  return known_file{file.string(), (*opened)->identity()};
}

std::optional<engine::file_fault> first_fault(const fs::path& file,
                                              const engine::file_sums& wanted) {
  if (auto length = engine::find_length_fault(file, wanted.bytes)) return length;
  auto found = engine::find_altered(file, wanted);
  if (found.empty()) found = engine::find_unfinite(file);
  return found.empty() ? std::nullopt : std::optional(found.front());
}

caf::result<slices_checked> on_check(slice_store_pointer self, const check_slices& what) {
  slices_checked out;
  for (const auto& [name, sums] : what.files) {
    const auto file = self->state.folder->file(what.checkpoint, name);
    if (!file) return to_caf(file.error());
    if (const auto fault = first_fault(*file, sums)) {
      out.faults.emplace(name, file->string() + ' ' + fault->what);
      continue;
    }
    auto here = known(*file);
    if (!here) return to_caf(here.error());
    out.whole.emplace(name, std::move(*here));
  }
  return out;
}

/// A copy that is under way.
struct copying {
  copy_slice what;
  slice_store_actor from;
  fs::path file;
  std::unique_ptr<engine::file_copy> into;
  caf::typed_response_promise<slice_copied> answer;
};

/// Nothing of the file is left when the answer is there.
void refuse(copying& of, caf::error why) {
  of.into.reset();
  of.answer.deliver(std::move(why));
}

void finish(copying& of) {
  auto here = of.into->finish().and_then([&] { return known(of.file); });
  if (!here) return refuse(of, to_caf(here.error()));
  of.answer.deliver(slice_copied{std::move(*here)});
}

/// One piece after another: what is under way of a copy is bounded.
void ask_for_more(slice_store_pointer self, const std::shared_ptr<copying>& of) {
  self->request(
          of->from, usual_deadlines.transfer,
          read_slice_file{of->what.checkpoint, of->what.name, of->into->next(), bytes_at_once})
      .then(
          [self, of](const slice_piece& got) {
            const auto& parts = got.piece.parts;
            const auto bytes = parts.empty() ? at::Tensor() : parts.front().tensor;
            const auto added = of->into->add(got.piece.begin.element, bytes);
            if (!added) return refuse(*of, to_caf(added.error()));
            of->into->complete() ? finish(*of) : ask_for_more(self, of);
          },
          [of](const caf::error& why) { refuse(*of, why); });
}

caf::result<slice_copied> on_copy(slice_store_pointer self, const copy_slice& what) {
  auto file = self->state.folder->file(what.checkpoint, what.name);
  if (!file) return to_caf(file.error());
  auto into = engine::file_copy::open(*file, what.sums);
  if (!into) return to_caf(into.error());
  auto promise = self->make_response_promise<slice_copied>();
  const auto copy =
      std::make_shared<copying>(copying{what, caf::actor_cast<slice_store_actor>(what.from),
                                        std::move(*file), std::move(*into), promise});
  ask_for_more(self, copy);
  return promise;
}

caf::result<slice_piece> on_read_file(slice_store_pointer self, const read_slice_file& what) {
  const auto file = self->state.folder->file(what.checkpoint, what.name);
  if (!file) return to_caf(file.error());
  auto bytes = engine::read_bytes(*file, what.first, std::min(what.most, bytes_at_once));
  if (!bytes) return to_caf(bytes.error());
  slice_piece out;
  out.piece.begin = {0, what.first};
  out.piece.parts.push_back({what.name, std::move(*bytes)});
  return out;
}

result<acknowledged> on_keep(slice_store_pointer self, const keep_slices& what) {
  return self->state.folder->remove_others(what.owner, what.checkpoints, what.newest).map([] {
    return acknowledged{};
  });
}

result<acknowledged> on_keep_manifest(slice_store_pointer self, const keep_manifest& what) {
  return self->state.folder->keep_manifest(what.checkpoint, what.text).map([] {
    return acknowledged{};
  });
}

result<manifests_kept> on_list(slice_store_pointer self, const list_manifests& what) {
  return self->state.folder->manifests(what.owner).map([](auto all) {
    return manifests_kept{std::move(all)};
  });
}

slice_store_actor::behavior_type slice_store_behavior(
    slice_store_pointer self, const std::shared_ptr<engine::slice_folder>& folder) {
  // Of this thread alone: checksums take what the arithmetic leaves of the cores.
  pthread_setname_np(pthread_self(), "slices");
  constexpr int behind_arithmetic = 10;
  static_cast<void>(::setpriority(PRIO_PROCESS, 0, behind_arithmetic));
  self->state.folder = std::make_unique<engine::slice_folder>(std::move(*folder));
  end_when_thrown(*self, store_name);
  const guarding guarded(self, store_name);
  return {
      guarded(on_check),         guarded(on_copy), guarded(on_read_file),
      guarded(on_keep_manifest), guarded(on_keep), guarded(on_list),
  };
}

}  // namespace

slice_store_actor spawn_slice_store(caf::actor_system& system, engine::slice_folder folder) {
  return spawn_detached(system, "slices of checkpoints", slice_store_behavior,
                        std::make_shared<engine::slice_folder>(std::move(folder)));
}

}  // namespace troupe::actors
