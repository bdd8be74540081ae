#include "cluster/checkpoints/checkpoint_folder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <span>
#include <utility>

#include "cluster/checkpoints/checkpoint_check.hpp"
#include "cluster/checkpoints/checkpoint_names.hpp"
#include "engine/checksums/file_digest.hpp"
#include "engine/slices/slice_folder.hpp"
#include "engine/state/atomic_file.hpp"
#include "messages/base/format.hpp"

namespace troupe::cluster {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t trial_bytes = 64 << 10;

tl::unexpected<error> failed(const fs::path& where, const std::string& what) {
  return fail(errc::io_failed, where.string() + ": " + what + ": " + std::strerror(errno));
}

tl::unexpected<error> failed(const fs::path& where, const std::string& what,
                             const std::error_code& why) {
  return fail(errc::io_failed, where.string() + ": " + what + ": " + why.message());
}

/// So that names in a folder outlive a loss of power.
result<void> sync_names(const fs::path& folder) {
  if (!engine::sync_folder(folder)) return failed(folder, "cannot be synced");
  return {};
}

result<void> write_manifest(const fs::path& file, const checkpoint_manifest& manifest) {
  auto out = engine::atomic_file::create(file);
  if (!out) return tl::unexpected(out.error());
  const auto text = to_text(manifest);
  if (auto written = (*out)->write(std::as_bytes(std::span(text))); !written) return written;
  return (*out)->commit();
}

/// Takes its name; what has it gets the other one's.
result<void> take_name(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return {};
  if (errno != ENOTEMPTY && errno != EEXIST) return failed(to, "cannot be written");
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) != 0)
    return failed(to, "cannot be replaced");
  return {};
}

/// What was begun and never finished.
void remove_half_written(const fs::path& folder) {
  const auto names = names_in(folder);
  std::error_code why;
  for (const auto& name : names.value_or(std::vector<std::string>()))
    if (name.starts_with(half_written_prefix)) fs::remove_all(folder / name, why);
}

/// Writes to a file without a name, of which a process that is killed meanwhile leaves nothing.
/// False where the folder's system has no such files, or refuses this one.
bool write_unnamed(const fs::path& folder, const std::vector<std::byte>& bytes) {
  const descriptor file(::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
  return file &&
         ::write(file.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()) &&
         ::fsync(file.get()) == 0;
}

/// Whether a file of some size can be written there.
result<void> try_to_write(const fs::path& folder) {
  const auto trial = folder / (std::string(half_written_prefix) + "trial");
  const std::vector<std::byte> bytes(trial_bytes, std::byte{1});
  engine::remove_abandoned(folder);
  if (write_unnamed(folder, bytes)) return {};
  auto file = engine::atomic_file::create(trial);  // which says why it cannot be
  auto written = file ? (*file)->write(bytes) : result<void>(tl::unexpected(file.error()));
  if (written) written = (*file)->commit();
  std::error_code why;
  fs::remove(trial, why);
  return written.map_error([&](error reason) {
    return error{errc::io_failed, folder.string() + " takes no checkpoint: " + reason.text};
  });
}

result<void> write_note(const fs::path& folder) {
  const auto note = folder / checkpoint_folder::evaluated_name;
  const descriptor made(::open(note.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (!made) return failed(note, "cannot be written");
  return sync_names(folder);
}

/// Writes the manifest of files that are there, and syncs it and its name.
result<void> complete(const checkpoint_folder::begun& what, const checkpoint_manifest& manifest) {
  const auto& folder = what.folder;
  const auto faults = manifest.is_on_hosts() ? std::vector<checkpoint_fault>()
                                             : find_faults(folder, manifest, check_depth::lengths);
  if (!faults.empty()) return fail(errc::io_failed, faults.front().text());
  if (what.is_evaluated)
    if (auto noted = write_note(folder); !noted) return noted;
  return write_manifest(folder / checkpoint_folder::manifest_name, manifest);
}

/// Where it has one.
result<void> remove_manifest(const fs::path& folder) {
  std::error_code why;
  fs::remove(folder / checkpoint_folder::manifest_name, why);
  if (why) return failed(folder, "an old checkpoint cannot be removed", why);
  return {};
}

result<void> remove_folder(const fs::path& folder) {
  std::error_code why;
  fs::remove_all(folder, why);
  if (why) return failed(folder, "an old checkpoint cannot be removed", why);
  return {};
}

result<void> for_each(const std::vector<fs::path>& folders, result<void> (*act)(const fs::path&)) {
  for (const auto& each : folders)
    if (auto done = act(each); !done) return done;
  return {};
}

}  // namespace

fs::path checkpoint_folder::path_of(std::uint64_t step) const {
  return folder_ / format("step-%06llu", static_cast<unsigned long long>(step));
}

result<void> checkpoint_folder::note_evaluated(std::uint64_t step) const {
  std::error_code why;
  const auto folder = path_of(step);
  const bool lacks =
      fs::exists(folder / manifest_name, why) && !fs::exists(folder / evaluated_name, why);
  return lacks ? write_note(folder) : result<void>();
}

result<void> checkpoint_folder::sync_all() const {
  std::error_code why;
  auto synced = sync_names(folder_);
  const auto all = entries();
  if (!all) return tl::unexpected(all.error());
  for (const auto& each : *all)
    if (synced && fs::is_directory(each.folder, why)) synced = sync_names(each.folder);
  return synced;
}

result<descriptor> checkpoint_folder::prepare() const {
  if (auto made = engine::make_synced_folder(folder_); !made) return tl::unexpected(made.error());
  descriptor taken(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // A system that knows no such locks refuses none.
  if (taken && ::flock(taken.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return fail(errc::io_failed, folder_.string() +
                                     " is where another run writes its checkpoints just now: end "
                                     "that one, or name another folder");
  if (const auto names = names_in(folder_); !names)
    return fail(errc::io_failed, names.error().text);
  if (auto synced = sync_all(); !synced) return tl::unexpected(synced.error());
  remove_half_written(folder_);
  if (auto fine = try_to_write(folder_); !fine) return tl::unexpected(fine.error());
  return taken;
}

std::optional<std::uint64_t> checkpoint_folder::free_bytes() const {
  std::error_code why;
  const auto room = fs::space(folder_, why);
  if (why) return std::nullopt;
  return room.available;
}

result<checkpoint_folder::begun> checkpoint_folder::begin(std::uint64_t step) const {
  remove_half_written(folder_);
  const auto name = std::string(half_written_prefix) + path_of(step).filename().string() + "-" +
                    engine::random_word();
  begun made{folder_ / name, step};
  if (::mkdir(made.folder.c_str(), 0777) != 0) return failed(path_of(step), "cannot be written");
  return made;
}

result<void> checkpoint_folder::perform(checkpoint_write_core::effect next, begun& what,
                                        const checkpoint_manifest& manifest,
                                        std::size_t keep) const {
  using effect = checkpoint_write_core::effect;
  switch (next) {
    case effect::write_manifest:
      return complete(what, manifest);
    case effect::take_name:
      return take_name(what.folder, path_of(what.step));
    case effect::sync_names:
      return sync_names(folder_);
    case effect::remove_replaced:
    case effect::drop:
      return remove_folder(what.folder);
    case effect::unlist_old:
      return old(what.step, keep).and_then([&](std::vector<fs::path> folders) {
        what.old = std::move(folders);
        return for_each(what.old, remove_manifest);
      });
    case effect::sync_old:
      return for_each(what.old, sync_names);
    case effect::remove_old:
      return for_each(what.old, remove_folder);
    default:  // is not done here
      return {};
  }
}

result<fs::path> checkpoint_folder::finish(begun what, const checkpoint_manifest& manifest) const {
  constexpr auto all = std::numeric_limits<std::size_t>::max();
  checkpoint_write_core order(false);
  order.did(true);  // the files are there
  result<void> done;
  while (order.next() != checkpoint_write_core::effect::end) {
    auto acted = perform(order.next(), what, manifest, all);
    order.did(acted.has_value());
    if (!acted && done) done = std::move(acted);
  }
  if (!order.is_whole()) return tl::unexpected(done.error());
  return path_of(what.step);
}

void checkpoint_folder::drop(const begun& what) {
  static_cast<void>(remove_folder(what.folder));
}

result<std::vector<fs::path>> checkpoint_folder::old(std::uint64_t newest, std::size_t keep) const {
  auto all = steps();
  if (!all) return tl::unexpected(all.error());
  std::erase_if(*all, [newest](std::uint64_t step) { return step > newest; });
  std::vector<fs::path> folders;
  for (std::size_t i = keep; i < all->size(); ++i) folders.push_back(path_of((*all)[i]));
  return folders;
}

std::string checkpoint_folder::slices_of(const begun& what) const {
  const auto name = what.folder.filename().string();  // .writing-step-N-random
  return path_of(what.step).filename().string() + '-' + owner() + name.substr(name.rfind('-'));
}

std::string checkpoint_folder::owner() const {
  std::error_code why;
  const auto path = fs::absolute(folder_, why).lexically_normal();
  const auto text = (path / "").parent_path().string();
  constexpr std::size_t bytes = 16, digits = 8;
  engine::running_digest digest(bytes);
  digest.add(std::as_bytes(std::span(text)));
  return digest.digits().substr(0, digits);
}

}  // namespace troupe::cluster
