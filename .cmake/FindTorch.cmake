# LibTorch as the PyPI wheel ships it, without the wheel's own CMake package (which needs a CUDA
# toolkit). Looks in TROUPE_TORCH_DIR, else in the project's virtual environment.
# Target: torch::torch (libtorch_cpu and libc10; CUDA kernels are loaded at run time).

if(NOT TROUPE_TORCH_DIR)
  file(GLOB candidates ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  list(LENGTH candidates count)
  if(count GREATER 0)
    list(GET candidates 0 found)
    set(TROUPE_TORCH_DIR ${found} CACHE PATH "The torch folder of an installed wheel")
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_library(Torch_CPU_LIBRARY torch_cpu PATHS ${TROUPE_TORCH_DIR}/lib NO_DEFAULT_PATH)
find_library(Torch_C10_LIBRARY c10 PATHS ${TROUPE_TORCH_DIR}/lib NO_DEFAULT_PATH)
find_package_handle_standard_args(Torch
  REASON_FAILURE_MESSAGE "run ./dev setup, or set TROUPE_TORCH_DIR"
  REQUIRED_VARS Torch_CPU_LIBRARY Torch_C10_LIBRARY)

if(Torch_FOUND AND NOT TARGET torch::torch)
  add_library(torch::torch INTERFACE IMPORTED)
  target_include_directories(torch::torch SYSTEM INTERFACE
    ${TROUPE_TORCH_DIR}/include ${TROUPE_TORCH_DIR}/include/torch/csrc/api/include)
  target_compile_definitions(torch::torch INTERFACE AT_PER_OPERATOR_HEADERS)
  target_link_libraries(torch::torch INTERFACE ${Torch_CPU_LIBRARY} ${Torch_C10_LIBRARY})
endif()
