// NCCL as it is found at run time: where it is looked for, and what is said where it cannot be
// used.

#include <dlfcn.h>
#include <stdlib.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "engine/collective/nccl/api.hpp"
#include "engine/collective/nccl/communicator.hpp"
#include "tests/refusal.hpp"
#include "tests/scratch_folder.hpp"

namespace {

namespace fs = std::filesystem;
namespace nccl = troupe::engine::nccl;
using Catch::Matchers::ContainsSubstring;
using troupe::errc;
using troupe::tests::scratch_folder;

const fs::path fake_library = TROUPE_FAKE_NCCL;

/// A setting of the environment while this lives.
class variable {
 public:
  variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  variable(const variable&) = delete;
  variable& operator=(const variable&) = delete;
  ~variable() { ::unsetenv(name_); }

 private:
  const char* name_;
};

/// The library as pip installs it, in a site-packages of its own.
fs::path installed_in(const fs::path& site) {
  const fs::path folder = site / "nvidia" / "nccl" / "lib";
  fs::create_directories(folder);
  fs::copy_file(fake_library, folder / "libnccl.so.2");
  return folder / "libnccl.so.2";
}

/// Why it is refused; fails the test where it is not.
std::string refusal(const nccl::search& places) {
  const auto loaded = error_of(nccl::load(places), errc::transport_missing);
  CHECK_THAT(loaded.text, !ContainsSubstring("\n"));
  return loaded.text;
}

TEST_CASE("NCCL is loaded from the file or the folder that a setting names") {
  const auto by_file = nccl::load({.named = fake_library}).value();
  CHECK(by_file->path == fake_library);
  CHECK(by_file->version == 22809);
  const auto by_folder = nccl::load({.named = fake_library.parent_path()}).value();
  CHECK(by_folder->path == fake_library);
}

TEST_CASE("a setting wins over pip's NCCL, and that over the loader's") {
  const scratch_folder site;
  const fs::path pips = installed_in(site.path());
  const auto pip = nccl::load({.site_packages = {"/nowhere", site.path()}}).value();
  CHECK(pip->path == pips);
  const auto named = nccl::load({.named = fake_library, .site_packages = {site.path()}}).value();
  CHECK(named->path == fake_library);
}

TEST_CASE("the loader's NCCL is taken where nothing else is there") {
  const scratch_folder site;  // without an NCCL
  const auto loaded =
      nccl::load({.site_packages = {site.path()}, .loader_name = fake_library.c_str()}).value();
  CHECK(loaded->path == fake_library);
}

TEST_CASE("a setting that names nothing is refused, whatever else is installed") {
  const scratch_folder site;
  installed_in(site.path());
  CHECK(refusal({.named = "/nowhere/libnccl.so.2", .site_packages = {site.path()}}) ==
        "NCCL: --nccl names /nowhere/libnccl.so.2, which is not there; correct --nccl, or leave it "
        "out");
}

TEST_CASE("an NCCL that is not there says how to install it") {
  const std::string line = refusal({.loader_name = "libnccl-that-nobody-has.so.2"});
  CHECK_THAT(line, ContainsSubstring("NCCL cannot be loaded: libnccl-that-nobody-has.so.2: cannot "
                                     "open shared object file"));
  CHECK_THAT(line, ContainsSubstring("pip install nvidia-nccl-cu13"));
}

TEST_CASE("an NCCL that is half installed says so, and nothing else is taken") {
  const scratch_folder site;
  const fs::path library = installed_in(site.path());
  SECTION("without its library") {
    fs::remove(library);
    const std::string line =
        refusal({.site_packages = {site.path()}, .loader_name = fake_library.c_str()});
    CHECK_THAT(line, ContainsSubstring("NCCL is half installed: " +
                                       (site.path() / "nvidia" / "nccl").string()));
    CHECK_THAT(line, ContainsSubstring("--force-reinstall"));
  }
  SECTION("with a library that was cut off") {
    const auto bytes = fs::file_size(library);
    fs::resize_file(library, GENERATE(1, 2, 3) * bytes / 4);
    const std::string line =
        refusal({.site_packages = {site.path()}, .loader_name = fake_library.c_str()});
    CHECK_THAT(
        line, ContainsSubstring("NCCL cannot be loaded: " + library.string() + " is incomplete: "));
    CHECK_THAT(line, ContainsSubstring("--force-reinstall"));
  }
  SECTION("with a library that is empty") {
    fs::resize_file(library, 0);
    const std::string line =
        refusal({.site_packages = {site.path()}, .loader_name = fake_library.c_str()});
    CHECK_THAT(line, ContainsSubstring(library.string() + ": file too short"));
  }
}

TEST_CASE("an NCCL that is too old, or of another generation, is refused by its version") {
  SECTION("too old") {
    const variable version("FAKE_NCCL_VERSION", "21405");
    CHECK_THAT(refusal({.named = fake_library}),
               ContainsSubstring("NCCL 2.14.5 in " + fake_library.string() +
                                 " is too old: 2.18.0 or newer is needed"));
  }
  SECTION("so old that its version is written in another way") {
    const variable version("FAKE_NCCL_VERSION", "2708");
    CHECK_THAT(refusal({.named = fake_library}), ContainsSubstring("NCCL 2.7.8 in"));
  }
  SECTION("of a generation that nobody knows yet") {
    const variable version("FAKE_NCCL_VERSION", "30000");
    CHECK_THAT(refusal({.named = fake_library}), ContainsSubstring("NCCL 3.0.0 in"));
  }
}

TEST_CASE("an NCCL without one of the functions names it") {
  CHECK_THAT(refusal({.named = TROUPE_LACKING_NCCL}),
             ContainsSubstring("has no function ncclAllGather"));
}

TEST_CASE("a library that is no NCCL is refused") {
  CHECK_THAT(refusal({.named = "/lib/x86_64-linux-gnu/libz.so.1"}),
             ContainsSubstring("it is no NCCL"));
}

TEST_CASE("site-packages are found by the LibTorch that the process has loaded") {
  const scratch_folder root;
  const fs::path site = root.path() / "site-packages";
  fs::create_directories(site / "torch" / "lib");
  fs::copy_file(fake_library, site / "torch" / "lib" / "libtorch_cpu.so");
  void* const torch = dlopen((site / "torch" / "lib" / "libtorch_cpu.so").c_str(), RTLD_NOW);
  REQUIRE(torch != nullptr);
  const auto found = nccl::site_packages_of_torch();
  CHECK(std::find(found.begin(), found.end(), site) != found.end());
  dlclose(torch);
}

TEST_CASE("the NCCL that is installed, where there is one, has what we call") {
  const auto loaded = nccl::load({.site_packages = nccl::site_packages_of_torch()});
  if (!loaded) SKIP("no usable NCCL is installed: " << loaded.error().text);
  INFO((*loaded)->path << ", " << nccl::version_text((*loaded)->version));
  const auto invited = nccl::invite(**loaded, 2).value();
  CHECK(invited.version >= nccl::oldest_version);
}

TEST_CASE("an NCCL that finds no interface says what to set") {
  const auto loaded = nccl::load({.named = fake_library}).value();
  const variable script("FAKE_NCCL_SCRIPT",
                        "ncclGetUniqueId:1:fail=3,Bootstrap : no socket interface found");
  CHECK(error_of(nccl::invite(*loaded, 2), errc::transport_missing).text ==
        "NCCL cannot begin a communicator: internal error (Bootstrap : no socket interface "
        "found); name a network interface that is up in NCCL_SOCKET_IFNAME");
}

TEST_CASE("an NCCL that a GPU has no memory for says what to do") {
  const auto why =
      nccl::explain("NCCL (rank 1 of 2): send of 8 float32", nccl::status::unhandled_cuda_error,
                    "unhandled cuda error", "Cuda failure 2 'out of memory'");
  CHECK(why.code == errc::handler_failed);
  CHECK(why.text ==
        "NCCL (rank 1 of 2): send of 8 float32: unhandled cuda error (Cuda failure 2 'out of "
        "memory'); the GPU has no memory left for NCCL's buffers: take a smaller micro-batch, or "
        "recompute activations (pipeline.recompute)");
}

}  // namespace
