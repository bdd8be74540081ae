#include "engine/collective/nccl/api.hpp"

#include <dlfcn.h>
#include <link.h>

#include <system_error>

#include "engine/device/shared_library.hpp"
#include "messages/base/format.hpp"

namespace troupe::engine::nccl {
namespace {

namespace fs = std::filesystem;

constexpr const char* file_name = "libnccl.so.2";
constexpr const char* install_advice =
    "install it with pip install nvidia-nccl-cu13, or say where the library is";
constexpr const char* mend_advice =
    "reinstall it with pip install --force-reinstall nvidia-nccl-cu13";

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// A place to load from and what to advise where it does not load.
struct place {
  std::string path;
  std::string advice;
};

result<place> named_place(const search& places) {
  std::error_code ignored;
  const fs::path file =
      fs::is_directory(places.named, ignored) ? places.named / file_name : places.named;
  const std::string advice = "correct " + places.setting + ", or leave it out";
  if (!is_there(file))
    return fail(errc::transport_missing,
                format("NCCL: %s names %s, which is not there; %s", places.setting.c_str(),
                       file.c_str(), advice.c_str()));
  return place{fs::absolute(file, ignored).string(), advice};
}

/// The first place that has something.
result<place> find(const search& places) {
  if (!places.named.empty()) return named_place(places);
  for (const auto& site : places.site_packages) {
    const fs::path folder = site / "nvidia" / "nccl";
    if (!is_there(folder)) continue;
    const fs::path file = folder / "lib" / file_name;
    if (!is_there(file))
      return fail(errc::transport_missing,
                  format("NCCL is half installed: %s is there, but not its lib/%s; %s",
                         folder.c_str(), file_name, mend_advice));
    return place{file.string(), mend_advice};
  }
  return place{places.loader_name, install_advice};
}

result<void> look_up(void* library, api& found) {
#define TROUPE_NCCL_LOOK_UP(name, symbol, returns, parameters)                                   \
  found.name = reinterpret_cast<returns(*) parameters>(dlsym(library, symbol));                  \
  if (found.name == nullptr)                                                                     \
    return fail(errc::transport_missing,                                                         \
                format("NCCL: %s has no function %s; %s or newer is needed", found.path.c_str(), \
                       symbol, version_text(oldest_version).c_str()));
  TROUPE_NCCL_FUNCTIONS(TROUPE_NCCL_LOOK_UP)
#undef TROUPE_NCCL_LOOK_UP
  return {};
}

/// Asked before the other functions are looked up: an old library lacks some, and its version says
/// more than their names.
result<int> version_of(void* library, const std::string& path) {
  const auto ask = reinterpret_cast<status (*)(int*)>(dlsym(library, "ncclGetVersion"));
  int version = 0;
  if (ask == nullptr || ask(&version) != status::success)
    return fail(errc::transport_missing,
                format("NCCL: %s does not say its version: it is no NCCL; %s", path.c_str(),
                       install_advice));
  if (version < oldest_version)
    return fail(
        errc::transport_missing,
        format("NCCL %s in %s is too old: %s or newer is needed; update it with pip "
               "install --upgrade nvidia-nccl-cu13",
               version_text(version).c_str(), path.c_str(), version_text(oldest_version).c_str()));
  if (version >= version_code(3, 0, 0))
    return fail(
        errc::transport_missing,
        format("NCCL %s in %s is not known here: versions %s to 2.99 are; install one of "
               "those",
               version_text(version).c_str(), path.c_str(), version_text(oldest_version).c_str()));
  return version;
}

int note_torch(dl_phdr_info* loaded, std::size_t /*size*/, void* found) {
  const fs::path path = loaded->dlpi_name;
  const fs::path site = path.parent_path().parent_path().parent_path();
  if (path.filename().string().starts_with("libtorch_cpu.so") && !site.empty())
    static_cast<std::vector<fs::path>*>(found)->push_back(site);
  return 0;
}

}  // namespace

std::string version_text(int code) {
  // Up to 2.8 a minor version had one digit: 2708 was 2.7.8.
  return code < 10000 ? format("%d.%d.%d", code / 1000, code / 100 % 10, code % 100)
                      : format("%d.%d.%d", code / 10000, code / 100 % 100, code % 100);
}

std::vector<fs::path> site_packages_of_torch() {
  std::vector<fs::path> found;
  dl_iterate_phdr(note_torch, &found);
  return found;
}

result<std::shared_ptr<const api>> load(const search& places) {
  const auto where = find(places);
  if (!where) return tl::unexpected(where.error());
  const auto library = load_library(where->path);
  if (!library)
    return fail(errc::transport_missing,
                "NCCL cannot be loaded: " + library.error().text + "; " + where->advice);
  auto found = std::make_shared<api>();
  found->path = where->path;
  const auto version = version_of(*library, found->path);
  if (!version) return tl::unexpected(version.error());
  found->version = *version;
  if (auto all = look_up(*library, *found); !all) return tl::unexpected(all.error());
  return found;
}

}  // namespace troupe::engine::nccl
