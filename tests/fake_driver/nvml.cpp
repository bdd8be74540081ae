// NVML of tests: FAKE_NVML_CARDS=2: how many GPUs the machine has.

#include <cstdio>
#include <cstdlib>

extern "C" {

int nvmlInit_v2() {
  return 0;
}

int nvmlShutdown() {
  return 0;
}

int nvmlSystemGetDriverVersion(char* text, unsigned bytes) {
  std::snprintf(text, bytes, "580.65.06");
  return 0;
}

int nvmlDeviceGetCount_v2(unsigned* count) {
  const char* const text = std::getenv("FAKE_NVML_CARDS");
  *count = text == nullptr ? 0 : static_cast<unsigned>(std::atoi(text));
  return 0;
}

}  // extern "C"
