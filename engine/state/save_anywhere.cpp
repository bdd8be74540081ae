#include "engine/state/save_anywhere.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "engine/state/safetensors.hpp"

namespace troupe::engine {
namespace {

namespace fs = std::filesystem;

// A save needs two at once at most; others of the process may take one before it does.
constexpr std::size_t held_back = 8;
constexpr std::size_t longest_name = 64;  // of a file in another folder
constexpr int most_numbers = 1000;        // of files of one name there
constexpr auto usual_name = "weights.safetensors";

/// The name of a file where the one that was asked for cannot be: short enough for any disk.
std::string name_elsewhere(const fs::path& file, const std::string& short_name) {
  const auto name = file.filename().string();
  return !name.empty() && name.size() <= longest_name ? name : short_name;
}

bool is_there(const fs::path& file) {
  struct stat about {};
  return ::lstat(file.c_str(), &about) == 0;
}

result<fs::path> new_temporary_folder() {
  std::error_code error;
  const auto parent = fs::temp_directory_path(error);
  if (error) return fail(errc::io_failed, "there is no temporary folder: " + error.message());
  auto name = (parent / "troupe-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr)
    return fail(errc::io_failed, "no folder can be made in " + parent.string() + ": " +
                                     std::generic_category().message(errno));
  return fs::path(name);
}

}  // namespace

spare_descriptors::spare_descriptors() {
  for (std::size_t i = 0; i < held_back; ++i) {
    descriptor one(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (one) held_.push_back(std::move(one));
  }
}

anywhere_saver::anywhere_saver(fs::path file, std::vector<fs::path> other_folders,
                               companion_name companion)
    : file_(std::move(file)),
      other_folders_(std::move(other_folders)),
      companion_(std::move(companion)) {}

bool anywhere_saver::is_taken(const fs::path& file) const {
  return is_there(file) || (companion_ && is_there(companion_(file)));
}

/// A name in a folder that no file has.
fs::path anywhere_saver::unused_in(const fs::path& folder, const std::string& name) const {
  const fs::path wanted(name);
  auto free = folder / wanted;
  for (int number = 2; is_taken(free) && number < most_numbers; ++number)
    free = folder /
           (wanted.stem().string() + "-" + std::to_string(number) + wanted.extension().string());
  return free;
}

result<fs::path> anywhere_saver::save_in(const fs::path& folder, const order& what) const {
  const auto file = unused_in(folder, name_elsewhere(what.file, what.short_name));
  if (is_taken(file)) return fail(errc::io_failed, file.string() + " exists");
  auto saved = save_safetensors(file, what.tensors);
  if (!saved) return tl::unexpected(saved.error());
  return file;
}

result<saved_file> anywhere_saver::save(const tensor_stream& tensors) {
  return write({file_, usual_name, tensors});
}

result<saved_file> anywhere_saver::save_companion(const fs::path& first,
                                                  const tensor_stream& tensors) {
  return write({companion_(first), companion_(usual_name).string(), tensors});
}

result<saved_file> anywhere_saver::write(const order& what) {
  auto saved = save_safetensors(what.file, what.tensors);
  if (saved) return saved_file{what.file, {}};
  if (saved.error().code != errc::io_failed) return tl::unexpected(saved.error());
  spare_.release();
  saved = save_safetensors(what.file, what.tensors);
  if (saved) return saved_file{what.file, {}};

  const std::string refusal = saved.error().text;
  std::string refusals = refusal;
  for (const auto& folder : other_folders_) {
    auto file = save_in(folder, what);
    if (file) return saved_file{*file, refusal};
    refusals += "; " + file.error().text;
  }
  auto folder = new_temporary_folder();
  if (folder) {
    auto file = save_in(*folder, what);
    if (file) return saved_file{*file, refusal};
    refusals += "; " + file.error().text;
    std::error_code ignored;
    fs::remove(*folder, ignored);
  } else {
    refusals += "; " + folder.error().text;
  }
  return fail(errc::io_failed, refusals);
}

}  // namespace troupe::engine
