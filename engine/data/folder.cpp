#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <fstream>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <system_error>
#include <unordered_set>
#include <utility>

#include "engine/checksums/file_digest.hpp"
#include "engine/data/image/image.hpp"
#include "engine/data/image/resample.hpp"
#include "engine/data/sources.hpp"
#include "engine/data/worker_pool.hpp"
#include "messages/base/log.hpp"

namespace troupe::engine {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t default_image_size = 224;
constexpr std::int64_t channels = 3;
constexpr std::size_t every_tenth = 10;  // file of a class tests, where there are no splits
// The mean and deviation of ImageNet's red, green and blue.
constexpr std::array<channel_scale, channels> normalised{
    channel_scale::normalising(0.485F, 0.229F), channel_scale::normalising(0.456F, 0.224F),
    channel_scale::normalising(0.406F, 0.225F)};

struct image_file {
  std::string name;  // within the folder of its class
  std::int64_t label = 0;
};

struct image_list {
  fs::path folder;  // holds the folders of the classes
  std::vector<image_file> files;
};

// What a tree holds, before any image is read.
struct image_tree {
  std::vector<std::string> classes;
  image_list train;
  image_list test;
};

bool is_image_name(const fs::path& file) {
  auto ending = file.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return ending == ".jpg" || ending == ".jpeg" || ending == ".png";
}

// The names in a folder that `wanted` accepts, sorted; hidden ones are left out.
template <class Wanted>
std::vector<std::string> list_names(const fs::path& folder, Wanted wanted) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    if (auto name = entry.path().filename().string(); !name.starts_with('.') && wanted(entry))
      names.push_back(std::move(name));
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> list_classes(const fs::path& folder) {
  return list_names(folder, [](const fs::directory_entry& entry) { return entry.is_directory(); });
}

std::vector<std::string> list_images(const fs::path& folder) {
  return list_names(folder, [](const fs::directory_entry& entry) {
    return is_image_name(entry.path()) && entry.is_regular_file();
  });
}

// The images of each class; `whose` are the classes that may occur, in the order of their labels.
result<image_list> scan(const fs::path& folder, const std::vector<std::string>& whose) {
  image_list list{folder, {}};
  for (const auto& name : list_classes(folder)) {
    const auto found = std::lower_bound(whose.begin(), whose.end(), name);
    if (found == whose.end() || *found != name)
      return fail(errc::bad_data, (folder / name).string() +
                                      ": the training images have no class \"" + name + "\"");
    auto images = list_images(folder / name);
    if (images.empty())
      return fail(errc::bad_data, (folder / name).string() + " holds no .jpg, .jpeg or .png file");
    for (auto& image : images) list.files.push_back({std::move(image), found - whose.begin()});
  }
  return list;
}

// Takes every tenth file of each class away from training.
void divide(image_list& train, image_list& test) {
  image_list left{train.folder, {}};
  test.folder = train.folder;
  std::size_t nth = 0;
  std::int64_t label = -1;
  for (auto& file : train.files) {
    nth = file.label == label ? nth + 1 : 1;
    label = file.label;
    (nth % every_tenth == 0 ? test : left).files.push_back(std::move(file));
  }
  train = std::move(left);
}

result<image_tree> scan_tree(const fs::path& root) {
  if (!fs::is_directory(root)) return fail(errc::bad_data, root.string() + " is not a folder");
  const bool has_splits = fs::is_directory(root / "train");
  const auto train_folder = has_splits ? root / "train" : root;
  image_tree tree;
  tree.classes = list_classes(train_folder);
  if (tree.classes.empty())
    return fail(errc::bad_data, train_folder.string() +
                                    " holds no folders; there must be one for each class, with its "
                                    ".jpg, .jpeg and .png files");
  auto train = scan(train_folder, tree.classes);
  if (!train) return tl::unexpected(train.error());
  tree.train = std::move(*train);
  if (!has_splits) {
    divide(tree.train, tree.test);
    return tree;
  }
  for (const auto* name : {"val", "test"}) {
    if (!fs::is_directory(root / name)) continue;
    auto test = scan(root / name, tree.classes);
    if (!test) return tl::unexpected(test.error());
    tree.test = std::move(*test);
    break;
  }
  return tree;
}

/// Errors: bad_data for what is wrong with the file, io_failed for what this process lacks.
result<std::vector<std::byte>> read_bytes(const fs::path& file) {
  std::error_code problem;
  const auto size = fs::file_size(file, problem);
  if (problem) return fail(errc::bad_data, problem.message());
  if (size > most_image_file_bytes)
    return fail(errc::bad_data, "it has " + std::to_string(size) + " bytes; at most " +
                                    std::to_string(most_image_file_bytes) + " are allowed");
  std::vector<std::byte> bytes(size);
  errno = 0;
  std::ifstream stream(file, std::ios::binary);
  const std::error_code refused(errno, std::generic_category());
  if (!stream && is_shortage(refused))
    return fail(errc::io_failed, refused.message() + remedy_of(refused));
  stream.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!stream) return fail(errc::bad_data, "it cannot be read");
  return bytes;
}

class folder_dataset final : public dataset {
 public:
  folder_dataset(image_tree tree, std::int64_t image_size, const dataset_options& options)
      : tree_(std::move(tree)),
        image_size_(image_size),
        strict_(options.strict),
        warn_(options.warn),
        pool_(options.threads) {}

  [[nodiscard]] std::int64_t size(split part) const override {
    return static_cast<std::int64_t>(of(part).files.size());
  }
  [[nodiscard]] std::int64_t classes() const override {
    return static_cast<std::int64_t>(tree_.classes.size());
  }
  [[nodiscard]] std::vector<std::int64_t> sample_shape() const override {
    return {channels, image_size_, image_size_};
  }
  [[nodiscard]] std::uint64_t skipped() const override { return skipped_; }

  [[nodiscard]] result<batch> read(split part,
                                   std::span<const std::int64_t> indices) const override {
    return read_partly(part, indices).map([](partial_batch all) { return all.readable; });
  }

  [[nodiscard]] result<partial_batch> read_partly(
      split part, std::span<const std::int64_t> indices) const override {
    std::vector<std::int64_t> left_out;
    auto readable = read_samples("folder " + of(part).folder.string(), indices, size(part),
                                 [&] { return decode(part, indices, left_out); });
    if (!readable) return tl::unexpected(readable.error());
    return partial_batch{std::move(*readable), std::move(left_out)};
  }

  [[nodiscard]] result<left_out_samples> left_out() const override {
    const std::lock_guard lock(warned_mutex_);
    return left_out_samples{told_of(left_out_train_), told_of(left_out_test_)};
  }

  [[nodiscard]] std::string name_of(split part, std::int64_t index) const override {
    return path_of(of(part), index).string();
  }

  [[nodiscard]] result<std::string> digest() const override {
    return guarded("folder " + tree_.train.folder.string(), [&]() -> result<std::string> {
      running_digest sum(sample_digest_bytes);
      add_number(sum, tree_.classes.size());
      for (const auto& name : tree_.classes) add_text(sum, name);
      for (const auto* list : {&tree_.train, &tree_.test}) add_files(sum, *list);
      return sum.digits();
    });
  }

 private:
  using index_set = std::set<std::int64_t>;

  static void add_files(running_digest& sum, const image_list& list) {
    add_number(sum, list.files.size());
    for (const auto& file : list.files) {
      add_number(sum, static_cast<std::uint64_t>(file.label));
      add_text(sum, file.name);
    }
  }

  [[nodiscard]] const image_list& of(split part) const {
    return part == split::train ? tree_.train : tree_.test;
  }

  [[nodiscard]] fs::path path_of(const image_list& list, std::int64_t index) const {
    const auto& file = list.files[static_cast<std::size_t>(index)];
    return list.folder / tree_.classes[static_cast<std::size_t>(file.label)] / file.name;
  }

  // Decodes one image into `to`; what is wrong with it, if anything, or what this process lacks.
  [[nodiscard]] std::optional<error> decode_into(const image_list& list, std::int64_t index,
                                                 std::span<float> to) const noexcept {
    try {
      const auto bytes = read_bytes(path_of(list, index));
      if (!bytes) return bytes.error();
      const auto image = decode_image(*bytes, image_size_);
      if (!image) return image.error();
      resampler(image->width, image->height, image_size_).run(image->pixels, normalised, to);
      return std::nullopt;
    } catch (const std::bad_alloc&) {
      return error{errc::io_failed, "no memory left"};  // so short that it takes none
    } catch (const std::exception& problem) {
      return error{errc::bad_data, problem.what()};
    }
  }

  [[nodiscard]] result<batch> decode(split part, std::span<const std::int64_t> indices,
                                     std::vector<std::int64_t>& left_out) const {
    const auto& list = of(part);
    auto whole = empty_batch(static_cast<std::int64_t>(indices.size()), sample_shape());
    const auto values = static_cast<std::size_t>(channels * image_size_ * image_size_);
    auto* images = whole.inputs.mutable_data_ptr<float>();
    std::vector<std::optional<error>> problems(indices.size());
    pool_.for_each(indices.size(), [&](std::size_t i) {
      problems[i] = decode_into(list, indices[i], {images + i * values, values});
    });
    auto* labels = whole.labels.mutable_data_ptr<std::int64_t>();
    std::size_t kept = 0;
    for (std::size_t i = 0; i < indices.size(); ++i) {
      if (problems[i]) {
        const auto& [code, why] = *problems[i];
        const auto text = path_of(list, indices[i]).string() + " cannot be used: " + why;
        if (strict_ || code == errc::io_failed) return fail(code, text);
        skip(part, indices[i], text);
        left_out.push_back(indices[i]);
        continue;
      }
      labels[kept] = list.files[static_cast<std::size_t>(indices[i])].label;
      if (kept != i) std::copy_n(images + i * values, values, images + kept * values);
      ++kept;
    }
    const auto count = static_cast<std::int64_t>(kept);
    return batch{whole.inputs.narrow(0, 0, count), whole.labels.narrow(0, 0, count)};
  }

  // Counts each time, warns the first time.
  void skip(split part, std::int64_t index, const std::string& text) const {
    ++skipped_;
    const std::lock_guard lock(warned_mutex_);
    (part == split::train ? left_out_train_ : left_out_test_).insert(index);
    if (!warned_.insert(text).second) return;
    if (warn_) {
      warn_(text);
    } else {
      log::warning(text + "; it is left out");
    }
  }

  image_tree tree_;
  std::int64_t image_size_;
  bool strict_;
  std::function<void(std::string_view)> warn_;
  mutable std::atomic<std::uint64_t> skipped_ = 0;
  mutable std::mutex warned_mutex_;
  mutable std::unordered_set<std::string> warned_;    // guarded by warned_mutex_
  mutable index_set left_out_train_, left_out_test_;  // the same
  mutable worker_pool pool_;
};

}  // namespace

opened_dataset open_folder(const fs::path& folder, const dataset_options& options) {
  auto tree = scan_tree(folder);
  if (!tree) return tl::unexpected(tree.error());
  const auto size = options.image_size == 0 ? default_image_size : options.image_size;
  return std::make_unique<folder_dataset>(std::move(*tree), size, options);
}

}  // namespace troupe::engine
