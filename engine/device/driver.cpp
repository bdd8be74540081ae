#include "engine/device/driver.hpp"

#include <dlfcn.h>

#include <array>
#include <cstddef>

#include "engine/device/shared_library.hpp"
#include "messages/base/format.hpp"

namespace troupe::engine {
namespace {

/// The functions of libcuda that are asked here; each returns 0 where it worked.
struct cuda_api {
  int (*init)(unsigned) = nullptr;
  int (*driver_version)(int*) = nullptr;
  int (*count)(int*) = nullptr;
  int (*get)(int*, int) = nullptr;
  int (*name)(char*, int, int) = nullptr;
  int (*memory)(std::size_t*, int) = nullptr;
  int (*attribute)(int*, int, int) = nullptr;
  int (*error_text)(int, const char**) = nullptr;
};

constexpr int major_attribute = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
constexpr int minor_attribute = 76;

template <class Function>
bool look_up(void* library, const char* symbol, Function& into) {
  into = reinterpret_cast<Function>(dlsym(library, symbol));
  return into != nullptr;
}

/// The first function that the library lacks; null: none.
const char* look_up_all(void* library, cuda_api& all) {
  if (!look_up(library, "cuInit", all.init)) return "cuInit";
  if (!look_up(library, "cuDriverGetVersion", all.driver_version)) return "cuDriverGetVersion";
  if (!look_up(library, "cuDeviceGetCount", all.count)) return "cuDeviceGetCount";
  if (!look_up(library, "cuDeviceGet", all.get)) return "cuDeviceGet";
  if (!look_up(library, "cuDeviceGetName", all.name)) return "cuDeviceGetName";
  if (!look_up(library, "cuDeviceTotalMem_v2", all.memory)) return "cuDeviceTotalMem_v2";
  if (!look_up(library, "cuDeviceGetAttribute", all.attribute)) return "cuDeviceGetAttribute";
  if (!look_up(library, "cuGetErrorString", all.error_text)) return "cuGetErrorString";
  return nullptr;
}

std::string words_for(const cuda_api& cuda, int code) {
  const char* text = nullptr;
  if (cuda.error_text(code, &text) != 0 || text == nullptr) return format("error %d", code);
  return text;
}

/// False where the driver refuses to tell of this card.
bool describe(const cuda_api& cuda, int index, card& found) {
  int handle = 0;
  std::array<char, 256> name{};
  std::size_t bytes = 0;
  if (cuda.get(&handle, index) != 0 ||
      cuda.name(name.data(), static_cast<int>(name.size()) - 1, handle) != 0 ||
      cuda.memory(&bytes, handle) != 0 ||
      cuda.attribute(&found.major, major_attribute, handle) != 0 ||
      cuda.attribute(&found.minor, minor_attribute, handle) != 0)
    return false;
  found.index = index;
  found.name = name.data();
  found.memory_bytes = bytes;
  return true;
}

void ask_cuda(const char* library_name, driver_facts& facts) {
  const auto library = load_library(library_name);
  if (!library) {
    facts.problem = "there is no NVIDIA driver (" + library.error().text +
                    "); install NVIDIA's driver, or use device = \"cpu\"";
    return;
  }
  cuda_api cuda;
  if (const char* const lacking = look_up_all(*library, cuda); lacking != nullptr) {
    facts.problem = format(
        "the NVIDIA driver is too old or half installed: %s has no %s; reinstall "
        "NVIDIA's driver",
        library_name, lacking);
    return;
  }
  if (cuda.driver_version(&facts.cuda) != 0) facts.cuda = 0;
  int count = 0;
  int code = cuda.init(0);
  if (code == 0) code = cuda.count(&count);
  if (code != 0) {
    facts.problem = "the NVIDIA driver does not start: " + words_for(cuda, code) +
                    "; see whether nvidia-smi works on this machine";
    return;
  }
  for (int index = 0; index < count; ++index) {
    card found;
    if (describe(cuda, index, found)) facts.cards.push_back(std::move(found));
  }
}

void ask_nvml(const char* library_name, driver_facts& facts) {
  const auto library = load_library(library_name);
  if (!library) return;
  int (*init)() = nullptr;
  int (*shut_down)() = nullptr;
  int (*version)(char*, unsigned) = nullptr;
  int (*count)(unsigned*) = nullptr;
  if (!look_up(*library, "nvmlInit_v2", init) || !look_up(*library, "nvmlShutdown", shut_down) ||
      !look_up(*library, "nvmlSystemGetDriverVersion", version) ||
      !look_up(*library, "nvmlDeviceGetCount_v2", count) || init() != 0)
    return;
  std::array<char, 81> text{};
  if (version(text.data(), 80) == 0) facts.version = text.data();
  unsigned cards = 0;
  if (count(&cards) == 0) facts.machine_cards = static_cast<int>(cards);
  shut_down();
}

}  // namespace

driver_facts ask_driver(const char* cuda_library, const char* nvml_library) {
  driver_facts facts;
  ask_nvml(nvml_library, facts);
  ask_cuda(cuda_library, facts);
  return facts;
}

}  // namespace troupe::engine
