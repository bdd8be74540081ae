// NVIDIA's driver of tests. FAKE_CUDA_VERSION=12040: the CUDA that it runs; FAKE_CUDA_INIT=100:
// what cuInit returns; FAKE_CUDA_CARDS="NAME,MAJOR,MINOR,MEMORY;..": its GPUs;
// FAKE_CUDA_LOADED=FILE: made when a process loads it.

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct fake_card {
  std::string name;
  int major = 0;
  int minor = 0;
  std::size_t memory = 0;
};

int number(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

std::vector<fake_card> cards() {
  const char* const text = std::getenv("FAKE_CUDA_CARDS");
  std::istringstream entries(text == nullptr ? "" : text);
  std::vector<fake_card> all;
  for (std::string entry; std::getline(entries, entry, ';');) {
    fake_card one;
    std::istringstream words(entry);
    std::getline(words, one.name, ',');
    char comma = 0;
    words >> one.major >> comma >> one.minor >> comma >> one.memory;
    all.push_back(one);
  }
  return all;
}

[[gnu::constructor]] void tell_of_load() {
  const char* const file = std::getenv("FAKE_CUDA_LOADED");
  if (file == nullptr) return;
  if (std::FILE* const made = std::fopen(file, "w")) std::fclose(made);
}

}  // namespace

extern "C" {

int cuInit(unsigned /*flags*/) {
  return number("FAKE_CUDA_INIT", 0);
}

int cuDriverGetVersion(int* version) {
  *version = number("FAKE_CUDA_VERSION", 13000);
  return 0;
}

int cuDeviceGetCount(int* count) {
  *count = static_cast<int>(cards().size());
  return 0;
}

int cuDeviceGet(int* handle, int index) {
  *handle = index + 100;  // a handle is not an index
  return 0;
}

int cuDeviceGetName(char* name, int bytes, int handle) {
  std::snprintf(name, static_cast<std::size_t>(bytes), "%s",
                cards().at(static_cast<std::size_t>(handle - 100)).name.c_str());
  return 0;
}

int cuDeviceTotalMem_v2(std::size_t* bytes, int handle) {
  *bytes = cards().at(static_cast<std::size_t>(handle - 100)).memory;
  return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int handle) {
  const auto card = cards().at(static_cast<std::size_t>(handle - 100));
  if (attribute != 75 && attribute != 76) return 1;
  *value = attribute == 75 ? card.major : card.minor;
  return 0;
}

int cuGetErrorString(int code, const char** text) {
  *text = code == 100 ? "no CUDA-capable device is detected" : "unknown error";
  return 0;
}

}  // extern "C"
